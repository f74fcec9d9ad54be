"""Two 32-bit numbers in each 64-bit word, so that words can be added modulo 2^64 and totals still come out exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np

from cofal.errors import UserError

Shapes = Mapping[str, tuple[int, ...]]


def layout(shapes: Shapes, question: str = "") -> bytes:
    """What parties must agree on before their words can be added, in one canonical text: names, shapes, and what was
    asked. Else two could be asked for zeros, and the total would be the third one's answer.
    """
    return json.dumps([question, *([name, [int(side) for side in shapes[name]]] for name in sorted(shapes))]).encode()


def words(shapes: Shapes) -> int:
    """How many words `pack` makes of arrays of these shapes."""
    return (sum(math.prod(shape) for shape in shapes.values()) + 1) // 2


def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """(words,) uint64: the int32 arrays in the order of their names; two numbers make low + 2^32 high modulo 2^64."""
    for name, array in arrays.items():
        if array.dtype != np.int32:
            raise UserError(f"array {name!r} to be summed is {array.dtype}; give int32")
    flat = [np.ravel(arrays[name]) for name in sorted(arrays)]
    numbers = np.concatenate([*flat, np.zeros(sum(map(len, flat)) % 2, dtype=np.int32)]).astype(np.int64)
    pairs = numbers.view(np.uint64).reshape(-1, 2)
    return pairs[:, 0] + (pairs[:, 1] << np.uint64(32))


def unpack(total: np.ndarray, shapes: Shapes) -> dict[str, np.ndarray]:
    """The totals, int64, from the sum of packed words; exact while every total is at least -2^31 and below 2^31."""
    low = total.astype(np.uint32).view(np.int32).astype(np.int64)
    high = ((total - low.view(np.uint64)) >> np.uint64(32)).astype(np.uint32).view(np.int32).astype(np.int64)
    numbers = np.stack([low, high], axis=1).ravel()
    arrays, start = {}, 0
    for name in sorted(shapes):
        size = math.prod(shapes[name])
        arrays[name] = numbers[start : start + size].reshape(shapes[name])
        start += size
    return arrays
