"""What a question may ask of a client: its arrays and numbers by name, and bounds that all our coordinators keep.

Steps and groups hide samples from a server that keeps to the protocol. One that does not may write anything into a
question: of a centre a million times too long, a distance in steps of 0.05 is one to seven digits. So each method lists
what its questions consist of, and a site answers nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from cofal.errors import UserError

REAL, WHOLE, FLAGS = "f", "iu", "b"  # kinds of numbers in an array, as numpy calls them
ROW = "dimensions"  # the length that a client's rows have
MEAN = 2.0  # length of a vector at most: means of cells, told in steps, may be longer than the unit rows they are of
UNIT = 1.01  # directions, and cosines to them, in half precision


@dataclass(frozen=True)
class Values:
    """The values of one array: their kind and bounds, and its `lengths` by name, alike in all arrays of a question.

    `longest`: norm at most of the vectors along its last length. `below`: they are positions in what has that length,
    or, with `ends`, where a part of it ends.
    """

    lengths: tuple[str | int, ...]
    kind: str
    low: float = -math.inf
    high: float = math.inf
    longest: float = math.inf
    below: str = ""
    ends: bool = False


@dataclass(frozen=True)
class Asked:
    """What a question of one kind consists of; every question may name `min_region` besides.

    summed: its answer holds what is only needed as a total over the clients. silent: its answer tells nothing.
    """

    arrays: Mapping[str, Values] = field(default_factory=dict)
    numbers: Collection[str] = ()
    summed: bool = False
    silent: bool = False


def vectors(*lengths: str, longest: float = MEAN) -> Values:
    return Values((*lengths, ROW), REAL, longest=longest)


def positions(length: str, below: str, low: int = 0) -> Values:
    return Values((length,), WHOLE, low=low, below=below)


def whole(*lengths: str | int, low: float = 0, high: float = math.inf) -> Values:
    return Values(lengths, WHOLE, low, high)


def between(length: str, low: float, high: float) -> Values:
    return Values((length,), REAL, low, high)


_TINY = np.finfo(np.float64).tiny
_REAL: Mapping[str, tuple[float, float]] = {  # bounds of the real ones
    "sharpness": (_TINY, math.inf),
    "lengthscale": (_TINY, math.inf),
    "delta": (0, 2),
}
_WHOLE: Mapping[str, tuple[float, float]] = {  # and of the whole ones; 0 and above where nothing else is said
    "min_region": (1, math.inf),
    "clients": (1, math.inf),
    "bits": (0, 30),
    "exact": (0, 1),
    "fine": (0, 1),
    "blurred": (0, 1),
}


def check_question(
    asked: Mapping[str, Asked],
    kind: str,
    arrays: Mapping[str, np.ndarray],
    numbers: Mapping[str, float],
    dimensions: int,
    most: Mapping[str, int],
) -> None:
    """Raise if a question to a client whose rows are of `dimensions` is not one that our coordinators ask.

    `asked`: by kind, what they ask. `most`: the greatest lengths, by name.
    """
    if kind not in asked:
        raise _beyond(f"a question of the kind {kind[:40]!r}")
    expected = asked[kind]
    _check_names("number", numbers, expected.numbers, {"min_region"})
    _check_names("array", arrays, expected.arrays)
    for name, value in numbers.items():
        _check_number(name, value)
    lengths = {ROW: dimensions}
    for name, values in expected.arrays.items():
        _check_lengths(name, arrays[name], values, lengths, most)
    for name, values in expected.arrays.items():
        _check_values(name, arrays[name], values, lengths)


def _check_names(
    what: str, given: Collection[str], expected: Collection[str], allowed: Collection[str] = frozenset()
) -> None:
    if lacking := sorted(set(expected) - set(given)):
        raise _beyond(f"no {what} {lacking[0]!r}")
    if strange := sorted(set(given) - set(expected) - set(allowed)):
        raise _beyond(f"the {what} {strange[0][:40]!r}")


def _check_number(name: str, value: float) -> None:
    low, high = _REAL.get(name) or _WHOLE.get(name, (0, math.inf))
    if not low <= value <= high or (name not in _REAL and value != math.floor(value)):
        raise _beyond(f"{name} = {value:g}")


def _check_lengths(
    name: str, array: np.ndarray, values: Values, lengths: dict[str, int], most: Mapping[str, int]
) -> None:
    """`lengths`: by name, those of the arrays before; this one's are added."""
    if array.dtype.kind not in values.kind or array.ndim != len(values.lengths):
        raise _beyond(f"{name} of type {array.dtype} and shape {array.shape}")
    for size, length in zip(array.shape, values.lengths):
        due = length if isinstance(length, int) else lengths.setdefault(length, size)
        if size != due:
            raise _beyond(f"{name} of {size} {'' if isinstance(length, int) else length} where {due} are due")
        if not isinstance(length, int) and size > most.get(length, math.inf):
            raise _beyond(f"{size} {length} where {most[length]} are the most")


def _check_values(name: str, array: np.ndarray, values: Values, lengths: Mapping[str, int]) -> None:
    if array.size == 0 or values.kind == FLAGS:
        return
    high = lengths[values.below] - (not values.ends) if values.below else values.high
    low, top = float(array.min()), float(array.max())  # NaN if any is
    if not (values.low <= low and top <= high and math.isfinite(low) and math.isfinite(top)):
        raise _beyond(f"{name} of {low if not values.low <= low else top:.3g}")
    if values.longest < math.inf:
        length = float(np.linalg.norm(array.astype(np.float64), axis=-1).max())
        if not length <= values.longest:
            raise _beyond(f"{name} {length:.3g} long")


def _beyond(what: str) -> UserError:
    return UserError(f"the server asks with {what}, which no selection does; use the same cofal at server and sites")
