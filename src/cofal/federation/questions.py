"""What a site's ledger keeps of a question of an aggregate selection: its numbers, and which arrays came with it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.federation import messages as m

OWN = ("mine", "wanted")  # what each site is told alone in a question whose answers are summed
_LONGEST = 1000  # characters in the ledger; the server chose them, and what would have to be cut is not answered


def noted_question(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and numbers of a question, shapes and digest of its arrays; refuses one that cannot be kept whole."""
    text = str(config["numbers"])
    asked = {"kind": str(config["kind"])}
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    length = len(text) + len(m.to_json([asked, shapes]))
    if length > _LONGEST:
        raise UserError(
            f"the question's kind, numbers and shapes take {length} characters; send at most {_LONGEST}, "
            "which the site's ledger keeps"
        )
    noted = {**asked, "numbers": _numbers(text)}
    return {**noted, "arrays": shapes, "sha256": arrays_digest(arrays)} if arrays else noted


def common_question(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> str:
    """A digest of what all sites are told alike of a question whose answers are summed under masks."""
    told = [str(config[name]) for name in ("digest", "track", "method", "kind", "numbers")]
    alike = {name: array for name, array in arrays.items() if name not in OWN}
    return hashlib.sha256(m.to_json([*told, arrays_digest(alike)]).encode()).hexdigest()


def _numbers(text: str) -> dict[str, float]:
    """The numbers as the answer will read them: of a name that comes twice, the last."""
    try:
        numbers = json.loads(text)
    except ValueError:
        numbers = None
    if not isinstance(numbers, dict) or not all(map(_finite, numbers.values())):
        raise UserError(f"the question's numbers are {text[:120]!r}; send a JSON object of finite numbers")
    return numbers


def _finite(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def arrays_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a list of [name, type, shape] in JSON, sorted by name, and then of the numbers in that order."""
    ordered = sorted(arrays.items())
    told = hashlib.sha256(m.to_json([[name, array.dtype.str, list(array.shape)] for name, array in ordered]).encode())
    for _, array in ordered:
        told.update(array.tobytes())
    return told.hexdigest()
