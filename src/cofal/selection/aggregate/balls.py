"""Which of a client's rows are in the ball around which of them, a bit a pair."""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import torch

from cofal.selection.kernels import TileBuffer, edge_band, squared_distance

_STRIP, _TILE = 1024, 4096  # pairs whose distances are in memory at once; multiples of 64
_BITS = 2**32  # of one graph of balls: beyond it, ball centres are looked for among a sample of the rows


class Balls:
    """Which rows are in the ball around which candidate: all rows, or a sample of a very large client's."""

    def __init__(self, bits: np.ndarray, candidates: int) -> None:
        self._bits, self.candidates = bits, candidates  # (n, words) uint64, of row x: candidates whose ball x is in

    def sizes(self, mask: np.ndarray) -> np.ndarray:
        """(candidates,) int64: how many rows of `mask` (n,) are in each candidate's ball."""
        counts = np.zeros(64 * self._bits.shape[1], dtype=np.int32)
        _count(self._bits, np.flatnonzero(mask), counts)
        return counts[: self.candidates].astype(np.int64)

    def members(self, candidate: int, mask: np.ndarray) -> np.ndarray:
        """The rows of `mask` in the ball of a candidate ascending."""
        column = self._bits[:, candidate // 64] >> np.uint64(candidate % 64) & np.uint64(1)
        return np.flatnonzero(mask & (column > 0))


def balls_of(x: np.ndarray, radii: Sequence[float]) -> list[Balls]:
    """The balls of each radius around the unit rows x (n, d) float32; pairs at an edge are decided in float64."""
    n, d = x.shape
    count = min(n, max(64, _BITS // max(1, n)))  # the first rows, which are a random sample: they are sorted by a hash
    bits = np.zeros((len(radii), n, -(-count // 64)), dtype=np.uint64)
    units, limits, buffer = torch.from_numpy(x), np.square(radii), TileBuffer()
    for start in range(0, n, _STRIP):
        for first in range(start if count == n else 0, count, _TILE):
            a, b = units[start : start + _STRIP], units[first : min(first + _TILE, count)]
            tile = buffer.squared(a, b).numpy()
            _pack(bits, tile, x, start, first, limits, edge_band(d))
    if count == n:
        for level in bits:
            _mirror(level)
    return [Balls(level, count) for level in bits]


@numba.njit(parallel=True, cache=True)
def _pack(
    bits: np.ndarray, tile: np.ndarray, x: np.ndarray, start: int, first: int, limits: np.ndarray, band: float
) -> None:
    """Set the bits of the pairs of a tile, which begins at row `start` and candidate `first`; one graph a limit."""
    columns = tile.shape[1]
    for i in numba.prange(tile.shape[0]):
        for level in range(limits.shape[0]):
            low, high = np.float32(limits[level] - band), np.float32(limits[level] + band)
            for word in range((columns + 63) // 64):
                row = tile[i, 64 * word : 64 * word + 64]
                value, edge = np.uint64(0), np.uint64(0)
                for j in range(row.shape[0]):
                    value |= np.uint64(row[j] < low) << np.uint64(j)
                    edge |= np.uint64(row[j] <= high) << np.uint64(j)
                if edge != value:
                    for j in range(row.shape[0]):
                        if low <= row[j] <= high:
                            exact = squared_distance(x[start + i], x[first + 64 * word + j])
                            value |= np.uint64(exact <= limits[level]) << np.uint64(j)
                bits[level, start + i, first // 64 + word] = value


@numba.njit(cache=True)
def _mirror(bits: np.ndarray) -> None:
    """Fill the part of a symmetric matrix of bits below its diagonal of 64 x 64 blocks from the part above."""
    n, words = bits.shape
    block = np.empty(64, dtype=np.uint64)
    for up in range(words):
        for right in range(up + 1, words):
            for k in range(64):
                block[k] = bits[64 * up + k, right]
            _transpose(block)
            for k in range(min(64, n - 64 * right)):
                bits[64 * right + k, up] = block[k]


@numba.njit(inline="always")
def _transpose(block: np.ndarray) -> None:
    """Transpose 64 x 64 bits in place: swap the off-diagonal halves, then those of each quarter, and so on."""
    width, mask = 32, np.uint64(0xFFFFFFFF)
    while width:
        shift = np.uint64(width)
        for k in range(64):
            if not k & width:
                swapped = ((block[k] >> shift) ^ block[k + width]) & mask
                block[k] ^= swapped << shift
                block[k + width] ^= swapped
        width //= 2
        mask ^= mask << np.uint64(width)


@numba.njit(cache=True)
def _count(bits: np.ndarray, rows: np.ndarray, counts: np.ndarray) -> None:
    for r in range(rows.shape[0]):
        for word in range(bits.shape[1]):
            value = bits[rows[r], word]
            if value:
                for bit in range(64):
                    counts[64 * word + bit] += np.int32((value >> np.uint64(bit)) & np.uint64(1))
