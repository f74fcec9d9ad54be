"""Guessing the next picks of a kernel coverage cheaply, so that one sweep over all pairs can check several of them.

A guess may be wrong: it then costs another sweep, never a wrong pick.
"""

from __future__ import annotations

from functools import cached_property

import numba
import numpy as np
import torch

from cofal.selection.greedy import Quota
from cofal.selection.kernels import Kernel
from cofal.selection.pool import Pool

MOST = 48  # picks foreseen at once
_DENSE, _LONG = 0.08, 1500  # share of all pairs, and pairs a row, beyond which a guess is cheaper than listing them
_SMALL = 1024  # pools up to this size list all their pairs
_FEW, _MANY, _MOST_POINTS, _SCOUTS = 2048, 4096, 16_384, 4096  # points of ever closer looks; sampled candidates
_ROOM = 256 << 20  # bytes that the values of all rows on the few points may take
_LOOK, _REGIONS, _REGION, _SHORT, _KEEP = 2048, 16, 128, 512, 64  # most candidates in each look
_TILE = 8192


class Foresight:
    """Kernel values of a few sampled rows, made once and used for every guess.

    Two ways to find good candidates, since each fails somewhere. *All rows on few points*: finds rare good rows, but a
    few points say little about pools of many tight clusters. *Few rows on many points*: the best of some scouts show
    the regions of the next pick, whose rows are then looked at.
    """

    def __init__(self, pool: Pool, kernel: Kernel, rng: np.random.Generator) -> None:
        self.pool, self.kernel = pool, kernel
        self.top = max(float(kernel.of(torch.zeros(1, dtype=torch.float64))), 1e-30)
        sample = rng.permutation(pool.n)
        few = min(_FEW, max(1, pool.n // 32), max(16, _ROOM // pool.n))
        self.few = np.sort(sample[:few])
        self.many = np.sort(sample[: min(_MANY, max(1, pool.n // 8))])
        self.most = np.sort(sample[: min(_MOST_POINTS, max(1, pool.n // 2))])
        self.scouts = np.sort(sample[::-1][: min(_SCOUTS, max(1, pool.n // 16))])

    @cached_property
    def on_few(self) -> np.ndarray:
        """(few points, n) kernel values of all rows in steps of 1/255 of the kernel's top: a byte each will do."""
        coarse = np.empty((len(self.few), self.pool.n), dtype=np.uint8)
        units = self.pool.rows(self.few)
        for start in range(0, self.pool.n, _TILE):
            stop = min(start + _TILE, self.pool.n)
            coarse[:, start:stop] = self.coarse(self.kernel.tile(units, self.pool.tile(start, stop)))
        return coarse

    def coarse(self, values: np.ndarray) -> np.ndarray:
        """Kernel values as whole numbers from 0 (or less) to 255 (the value of a row and itself, or more)."""
        return np.clip(values * np.float32(255 / self.top), 0, 255).astype(np.uint8)

    @cached_property
    def on_many(self) -> np.ndarray:
        """(many points, scouts) float32 kernel values of the scouts."""
        return self.kernel.tile(self.pool.rows(self.many), self.pool.rows(self.scouts)).copy()

    def values(self, rows: np.ndarray) -> np.ndarray:
        """(rows, n) float32 kernel values to all rows."""
        units = self.pool.rows(rows)
        values = np.empty((len(rows), self.pool.n), dtype=np.float32)
        for start in range(0, self.pool.n, _TILE):
            stop = min(start + _TILE, self.pool.n)
            values[:, start:stop] = self.kernel.tile(units, self.pool.tile(start, stop))
        return values

    def begin(self, best: np.ndarray, quota: Quota, *, dense: bool) -> Guesses:
        """Guesses from the state where rows have kernel value `best` (n,) to their best pick.

        `dense`: a list of any length is thought cheaper than a guess.
        """
        return Guesses(self, best, quota.copy(), dense)


class Guesses:
    """A run of guessed picks: ask `next_pick`, then `confirm` it with the state after it."""

    def __init__(self, foresight: Foresight, best: np.ndarray, quota: Quota, dense: bool) -> None:
        self._foresight, self._quota, self._dense = foresight, quota, dense
        self._best = best.astype(np.float32)
        self.rows: list[int] = []

    def pairs_left(self) -> float:
        """About how many pairs (x, c) have k(x, c) above best[x]; infinite if another guess is cheaper than a list."""
        n = self._foresight.pool.n
        if n <= _SMALL:
            return n * n
        share = _share_above(self._foresight.on_few, self._levels())
        pairs = 1.1 * share * n * n
        return pairs if self._dense or share <= min(_DENSE, _LONG / n) else float("inf")

    def next_pick(self) -> int | None:
        """The row that is likely picked next; None when no more should be guessed.

        Candidates are looked at on more and more points, the better ones each time.
        """
        if len(self.rows) >= MOST or not self._quota.mask.any():
            return None
        f, feasible = self._foresight, self._quota.mask
        gains = _coarse_gains(f.on_few, self._levels())
        gains[~feasible] = -1
        region, closest = self._regions()
        rows = np.union1d(largest(gains, min(_LOOK, max(len(gains) // 50, _KEEP))), region)
        for points, count in ((f.many, min(_SHORT, max(len(gains) // 40, _KEEP))), (f.most, _KEEP)):
            rows = rows[largest(self._gains_of(rows, points), count)]
        rows = np.union1d(rows, closest)
        rows = rows[feasible[rows]]
        gains = self._gains_of(rows, None)
        return int(rows[np.argmax(gains)]) if len(rows) and gains.max() > 0 else None

    def _levels(self) -> np.ndarray:
        return self._foresight.coarse(self._best[self._foresight.few])

    def _regions(self) -> tuple[np.ndarray, np.ndarray]:
        """Feasible rows around the best feasible scouts, and the closest to the best one."""
        f, feasible = self._foresight, self._quota.mask
        gains = _gains(f.on_many, self._best[f.many])
        gains[~feasible[f.scouts]] = -1
        scouts: np.ndarray = f.scouts[largest(gains, _SHORT)]
        scouts = scouts[feasible[scouts]]
        if len(scouts) == 0:
            return scouts, scouts
        gains = self._gains_of(scouts, f.most)
        scouts = scouts[np.argsort(-gains, kind="stable")[:_REGIONS]]
        closeness = f.values(scouts)
        closeness[:, ~feasible] = -np.inf
        room = int(feasible.sum())
        near = min(_REGION, max(len(feasible) // 400, 8), room)
        region = np.concatenate([largest(values, near) for values in closeness])
        return region, largest(closeness[0], min(_KEEP, room))

    def confirm(self, row: int, best: np.ndarray) -> None:
        """Take `row` as picked, after which the rows have kernel value `best` (n,) to their best pick."""
        self.rows.append(row)
        self._quota.take(row)
        self._best = best.astype(np.float32)

    def _gains_of(self, rows: np.ndarray, points: np.ndarray | None) -> np.ndarray:
        """Gains of `rows` summed over `points` (None: all points)."""
        f = self._foresight
        units = f.pool.rows(rows)
        gains = np.zeros(len(rows))
        for start in range(0, f.pool.n if points is None else len(points), _TILE):
            if points is None:
                stop = min(start + _TILE, f.pool.n)
                tile, best = f.pool.tile(start, stop), self._best[start:stop]
            else:
                chosen = points[start : start + _TILE]
                tile, best = f.pool.rows(chosen), self._best[chosen]
            gains += _gains(f.kernel.tile(tile, units), best)
        return gains


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` largest values, ascending; of equal values, the first ones."""
    if count >= len(values):
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


_STRIP = 2048  # candidates a thread looks after


@numba.njit(parallel=True, fastmath=True, cache=True)
def _gains(values: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Sum over points p of max(0, values[p, c] - best[p]) for each candidate c."""
    points, n = values.shape
    gains = np.zeros(n, dtype=np.float32)
    for strip in numba.prange((n + _STRIP - 1) // _STRIP):
        for p in range(points):
            for c in range(strip * _STRIP, min(n, (strip + 1) * _STRIP)):
                gains[c] += max(values[p, c] - best[p], np.float32(0))
    return gains


@numba.njit(parallel=True, cache=True)
def _coarse_gains(values: np.ndarray, best: np.ndarray) -> np.ndarray:
    """`_gains` of bytes."""
    points, n = values.shape
    gains = np.zeros(n, dtype=np.int32)
    for strip in numba.prange((n + _STRIP - 1) // _STRIP):
        low, high = strip * _STRIP, min(n, (strip + 1) * _STRIP)
        mine = gains[low:high]
        for p in range(points):
            row, level = values[p, low:high], np.int32(best[p])
            for c in range(high - low):
                mine[c] += max(np.int32(row[c]) - level, np.int32(0))
    return gains


@numba.njit(parallel=True, cache=True)
def _share_above(values: np.ndarray, best: np.ndarray) -> float:
    above = 0
    for p in numba.prange(values.shape[0]):
        count = 0
        for c in range(values.shape[1]):
            count += values[p, c] > best[p]
        above += count
    return above / values.size
