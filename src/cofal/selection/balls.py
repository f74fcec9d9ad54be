"""Ball coverage of very many points by a sample of candidates, as an objective of the greedy; approximate mode's own.

Every candidate keeps the list of the points in its ball. Gains only fall, so a count from earlier is a bound: a
candidate is counted again only when its bound is the greatest (lazy greedy).
"""

from __future__ import annotations

import numba
import numpy as np

from cofal.selection.greedy import Quota
from cofal.selection.kernels import TopHat
from cofal.selection.pool import Pool
from cofal.selection.steps import steps

BYTES_PER_PAIR = 2  # the place of a point in its block
_BLOCK, _TILE = 4096, 512  # points in a block, candidates in a tile
_ROWS_AT_ONCE = 8192


class BallLists:
    """F(S) = number of `points` within a ball of a candidate in S; labelled candidates cover from the start."""

    def __init__(self, candidates: Pool, points: Pool, ball: TopHat) -> None:
        """`candidates` are held in memory; `points` are read once, block by block."""
        self._starts: list[np.ndarray] = []  # per block, (candidates + 1,) where each one's list begins
        self._places: list[np.ndarray] = []  # per block, all lists end to end, uint16
        self._sizes = np.zeros(candidates.n, dtype=np.int64)  # points in each ball
        with steps("distances", points.n) as advance:
            for start in range(0, points.n, _BLOCK):
                block = points.tile(start, min(start + _BLOCK, points.n))
                counts, places = [], []
                for left in range(0, candidates.n, _TILE):
                    inside = ball.tile(candidates.tile(left, min(left + _TILE, candidates.n)), block)
                    counts.append(_count(inside))
                    places.append(_list(inside, counts[-1]))
                sizes = np.concatenate(counts)
                self._starts.append(np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint32))
                self._places.append(np.concatenate(places))
                self._sizes += sizes
                advance(len(block))
        self._covered = [np.zeros(min(_BLOCK, points.n - start), np.bool_) for start in range(0, points.n, _BLOCK)]
        self._bounds = self._sizes.copy()
        for row in np.flatnonzero(candidates.labeled):
            self.add(int(row))

    def candidates(self, quota: Quota) -> tuple[np.ndarray, np.ndarray]:
        """The first feasible row of the greatest gain, and that gain."""
        bounds = np.where(quota.mask, self._bounds, -1)
        counted = np.zeros(len(bounds), dtype=np.bool_)
        while not counted[row := int(bounds.argmax())]:
            bounds[row] = self._bounds[row] = self._gain(row)
            counted[row] = True
        return np.array([row]), bounds[[row]].astype(np.float64)

    def add(self, row: int) -> float:
        """Cover the points in the ball of `row`; returns how many were not covered before."""
        gain = self._gain(row)
        for covered, starts, places in zip(self._covered, self._starts, self._places):
            covered[places[starts[row] : starts[row + 1]]] = True
        self._bounds[row] = 0
        return float(gain)

    def restart(self) -> None:
        """No point counts as covered any more."""
        for covered in self._covered:
            covered[:] = False
        self._bounds = self._sizes.copy()

    def _gain(self, row: int) -> int:
        gain = 0
        for covered, starts, places in zip(self._covered, self._starts, self._places):
            mine = places[starts[row] : starts[row + 1]]
            if len(mine):
                gain += len(mine) - int(np.count_nonzero(covered[mine]))
        return gain


def ball_sizes(pool: Pool, points: Pool, ball: TopHat) -> np.ndarray:
    """(pool.n,) int64: how many of `points` lie in the ball of each row of `pool`."""
    sizes = np.zeros(pool.n, dtype=np.int64)
    with steps("ball sizes", pool.n) as advance:
        for start in range(0, pool.n, _ROWS_AT_ONCE):
            rows = pool.tile(start, min(start + _ROWS_AT_ONCE, pool.n))
            for left in range(0, points.n, _TILE):
                inside = ball.tile(rows, points.tile(left, min(left + _TILE, points.n)))
                sizes[start : start + len(rows)] += _count(inside)
            advance(len(rows))
    return sizes


@numba.njit(parallel=True, cache=True)
def _count(inside: np.ndarray) -> np.ndarray:
    """Ones in each row of a tile of ones and zeros."""
    counts = np.empty(inside.shape[0], dtype=np.int64)
    for i in numba.prange(inside.shape[0]):
        total = np.int32(0)
        for j in range(inside.shape[1]):
            total += np.int32(inside[i, j])
        counts[i] = total
    return counts


@numba.njit(parallel=True, cache=True)
def _list(inside: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The columns of the ones, row after row; counts[i] of them in row i."""
    starts = np.cumsum(counts) - counts
    columns = np.empty(counts.sum(), dtype=np.uint16)
    for i in numba.prange(inside.shape[0]):
        if counts[i] == 0:
            continue
        at = starts[i]
        for j in range(inside.shape[1]):
            if inside[i, j] > 0:
                columns[at] = j
                at += 1
    return columns
