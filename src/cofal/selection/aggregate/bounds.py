"""What a question may ask of a client: bounds that our coordinators keep, and beyond which answers would say too much.

Steps and groups hide samples from a server that keeps to the protocol. One that does not may write any number into a
question: of a centre a million times too long, a distance in steps of 0.05 is one to seven digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cofal.errors import UserError

_LONGEST = 2.0  # means of cells, told in steps, may be somewhat longer than the unit rows they are of
_UNIT = 1.01  # directions, and cosines to them, in half precision
_DIRECTIONS, _COSINES = ("candidates",), ("offered", "cosines")
_EARLIER = 1000  # earlier iterations or trips that a question may tell of
_POSITIVE, _NEVER_NEGATIVE = ("min_region", "clients", "sharpness"), ("start", "given", "assigned", "depth", "most")
_BITS = 30


def check_question(
    arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float], dimensions: int, most: Mapping[str, int]
) -> None:
    """Raise if a question to a client whose rows are of `dimensions` goes beyond what any coordinator asks.

    `most`: how many vectors, or trips, the method's own coordinator tells of at most, by the name of the array.
    """
    for name, value in numbers.items():
        if (name in _POSITIVE and not value > 0) or (name in _NEVER_NEGATIVE and not value >= 0):
            raise _beyond(f"{name} = {value:g}")
        if name == "bits" and not 0 <= value <= _BITS:
            raise _beyond(f"{name} = {value:g}")
    for name, array in arrays.items():
        vectors = array.dtype.kind == "f" and array.ndim > 1
        if len(array.shape) and array.shape[-2 if vectors else 0] > most.get(name, math.inf):
            raise _beyond(f"{array.shape[-2 if vectors else 0]} {name} where {most[name]} are the most")
        if array.dtype.kind != "f":
            continue
        if not np.isfinite(array).all():
            raise _beyond(f"{name} that are no numbers")
        if name in _COSINES and not (array <= _UNIT).all():
            raise _beyond(f"{name} of {float(array.max()):.3g}")
        if vectors:
            _check_vectors(name, array, dimensions)


def _check_vectors(name: str, vectors: np.ndarray, dimensions: int) -> None:
    if vectors.shape[-1] != dimensions:
        raise _beyond(f"{name} of {vectors.shape[-1]} dimensions where its rows have {dimensions}")
    if vectors.ndim > 3 or (vectors.ndim == 3 and len(vectors) > _EARLIER):
        raise _beyond(f"{name} of {len(vectors)} iterations")
    length = float(np.linalg.norm(vectors.astype(np.float64), axis=-1).max(initial=0))
    if not length <= (_UNIT if name in _DIRECTIONS else _LONGEST):
        raise _beyond(f"{name} {length:.3g} long")


def _beyond(what: str) -> UserError:
    return UserError(f"the server asks with {what}, which no selection needs; use the same cofal at server and sites")
