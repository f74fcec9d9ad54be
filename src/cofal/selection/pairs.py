"""The compressed list of pairs (point, candidate) that can still matter, and the gains kept up by it."""

from __future__ import annotations

import numba
import numpy as np

BYTES_PER_PAIR = 6  # a uint16 column within its tile and a float32 value


class PairList:
    """For each row x and each tile of columns, the candidates c with k(x, c) above what x has, and those values.

    `full` turns true when the pairs do not fit; the list is then useless.
    """

    def __init__(self, n: int, tile: int, capacity: int) -> None:
        """Room for `capacity` pairs among `n` rows, in tiles of `tile` (at most 65,535) columns."""
        tiles = -(-n // tile)
        self._tile = tile
        self._columns = np.empty(capacity, dtype=np.uint16)  # memory is committed by the system only as it is filled
        self._values = np.empty(capacity, dtype=np.float32)
        self._starts = np.zeros((n, tiles), dtype=np.int64)
        self._counts = np.zeros((n, tiles), dtype=np.uint16)
        self._used = 0
        self.full = False

    def collect(self, values: np.ndarray, best: np.ndarray, top: int, left: int) -> None:
        """Take the pairs of the (r, c) tile of kernel values at (top, left) and, off the diagonal, of its mirror."""
        if self.full:
            return
        r, c = values.shape
        below, beside = top // self._tile, left // self._tile
        self._claim(_count_rows(values, best[top : top + r]), top, beside)
        if not self.full:
            _fill_rows(values, best[top : top + r], self._starts[top : top + r, beside], self._columns, self._values)
        if top != left and not self.full:
            self._claim(_count_columns(values, best[left : left + c]), left, below)
            if not self.full:
                starts = self._starts[left : left + c, below]
                _fill_columns(values, best[left : left + c], starts, self._columns, self._values)

    def _claim(self, counts: np.ndarray, first: int, tile: int) -> None:
        """Reserve room for counts[i] pairs of row first + i with the columns of `tile`."""
        ends = self._used + np.cumsum(counts)
        if len(ends) and ends[-1] > len(self._columns):
            self.full = True
            return
        self._starts[first : first + len(counts), tile] = ends - counts
        self._counts[first : first + len(counts), tile] = counts
        self._used = int(ends[-1])

    def lower_gains(self, gains: np.ndarray, points: np.ndarray, old: np.ndarray, new: np.ndarray) -> None:
        """Take out of `gains` (n,) float64 what candidates lose as points[p] rises from old[p] to new[p] (float32)."""
        _lower(gains, points, old, new, self._tile, self._starts, self._counts, self._columns, self._values)


# The loops below first count in a vectorised loop, then look at single values only where there is something to find.
_STRIP = 64  # columns looked at together


@numba.njit(inline="always")
def _above(row: np.ndarray, best: np.ndarray) -> np.int32:
    count = np.int32(0)
    for j in range(row.shape[0]):
        count += np.int32(row[j] > best[j])
    return count


@numba.njit(inline="always")
def _above_one(row: np.ndarray, best: float) -> np.int32:
    count = np.int32(0)
    for j in range(row.shape[0]):
        count += np.int32(row[j] > best)
    return count


@numba.njit(parallel=True, cache=True)
def _count_rows(values: np.ndarray, best: np.ndarray) -> np.ndarray:
    counts = np.empty(values.shape[0], dtype=np.int64)
    for i in numba.prange(values.shape[0]):
        counts[i] = _above_one(values[i], best[i])
    return counts


@numba.njit(parallel=True, cache=True)
def _fill_rows(values: np.ndarray, best: np.ndarray, starts: np.ndarray, columns: np.ndarray, kept: np.ndarray) -> None:
    c = values.shape[1]
    for i in numba.prange(values.shape[0]):
        at, row, mine = starts[i], values[i], best[i]
        for low in range(0, c, _STRIP):
            high = min(c, low + _STRIP)
            if _above_one(row[low:high], mine) > 0:
                for j in range(low, high):
                    if row[j] > mine:
                        columns[at] = j
                        kept[at] = row[j]
                        at += 1


@numba.njit(parallel=True, cache=True)
def _count_columns(values: np.ndarray, best: np.ndarray) -> np.ndarray:
    r, c = values.shape
    counts = np.zeros(c, dtype=np.int64)
    for strip in numba.prange((c + _STRIP - 1) // _STRIP):
        low, high = strip * _STRIP, min(c, (strip + 1) * _STRIP)
        local, theirs = np.zeros(high - low, dtype=np.int32), best[low:high]
        for i in range(r):
            row = values[i, low:high]
            for j in range(high - low):
                local[j] += np.int32(row[j] > theirs[j])
        counts[low:high] = local
    return counts


@numba.njit(parallel=True, cache=True)
def _fill_columns(
    values: np.ndarray, best: np.ndarray, starts: np.ndarray, columns: np.ndarray, kept: np.ndarray
) -> None:
    r, c = values.shape
    for strip in numba.prange((c + _STRIP - 1) // _STRIP):
        low, high = strip * _STRIP, min(c, (strip + 1) * _STRIP)
        at, theirs = starts[low:high].copy(), best[low:high]
        for i in range(r):
            row = values[i, low:high]
            if _above(row, theirs) > 0:
                for j in range(high - low):
                    if row[j] > theirs[j]:
                        columns[at[j]] = i
                        kept[at[j]] = row[j]
                        at[j] += 1


@numba.njit(cache=True)
def _lower(
    gains: np.ndarray,
    points: np.ndarray,
    old: np.ndarray,
    new: np.ndarray,
    tile: int,
    starts: np.ndarray,
    counts: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> None:
    """One thread, since threads would fight over `gains`; pairs that can no longer matter are dropped on the way."""
    for p in range(points.shape[0]):
        x, was, now = points[p], old[p], new[p]
        for t in range(starts.shape[1]):
            first = starts[x, t]
            alive = first
            for e in range(first, first + np.int64(counts[x, t])):
                value = values[e]
                if value > was:
                    c = t * tile + np.int64(columns[e])
                    if value > now:
                        gains[c] -= np.float64(now) - np.float64(was)
                        columns[alive] = columns[e]
                        values[alive] = value
                        alive += 1
                    else:
                        gains[c] -= np.float64(value) - np.float64(was)
            counts[x, t] = alive - first
