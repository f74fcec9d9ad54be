"""Guessing the next picks of a kernel coverage cheaply, so that one sweep over all pairs can check several of them.

A guess may be wrong: it then costs another sweep, never a wrong pick.
"""

from __future__ import annotations

from functools import cached_property

import numba
import numpy as np

from cofal.selection.greedy import Quota
from cofal.selection.kernels import Kernel
from cofal.selection.pool import Pool

MOST = 32  # picks foreseen at once
_DENSE = 0.08  # share of all pairs beyond which another guess is cheaper than listing the pairs
_SMALL = 1024  # pools up to this size list all their pairs
_LOOK, _KEEP, _SCOUTS = 512, 64, 256  # candidates for a look on many points; candidates, scouts for one on all points


class Foresight:
    """Kernel values of a few sampled rows, made once and used for every guess.

    Two ways to find good candidates, since each fails somewhere. *All rows on few points*: finds rare good rows, but a
    few points say little about pools of many tight clusters. *Few rows on many points*: the best of some scouts shows
    the region of the next pick, whose rows are then looked at.
    """

    def __init__(self, pool: Pool, kernel: Kernel, rng: np.random.Generator) -> None:
        self.pool, self.kernel = pool, kernel
        sample = rng.permutation(pool.n)
        self.few = np.sort(sample[: min(512, max(1, pool.n // 64))])
        self.many = np.sort(sample[: min(4096, max(1, pool.n // 8))])
        self.scouts = np.sort(sample[::-1][: min(2048, max(1, pool.n // 32))])

    @cached_property
    def on_few(self) -> np.ndarray:
        """(few points, n) float32 kernel values of all rows."""
        return self.values(self.few)

    @cached_property
    def on_many(self) -> np.ndarray:
        """(many points, scouts) float32 kernel values of the scouts."""
        return self.kernel.tile(self.pool.rows(self.many), self.pool.rows(self.scouts)).copy()

    def values(self, rows: np.ndarray) -> np.ndarray:
        """(rows, n) float32 kernel values to all rows."""
        units = self.pool.rows(rows)
        values = np.empty((len(rows), self.pool.n), dtype=np.float32)
        for start in range(0, self.pool.n, 8192):
            stop = min(start + 8192, self.pool.n)
            values[:, start:stop] = self.kernel.tile(units, self.pool.tile(start, stop))
        return values

    def begin(self, best: np.ndarray, quota: Quota) -> Guesses:
        """Guesses from the state where rows have kernel value `best` (n,) to their best pick."""
        return Guesses(self, best, quota.copy())


class Guesses:
    """A run of guessed picks: ask `next_pick`, then `confirm` it with the state after it."""

    def __init__(self, foresight: Foresight, best: np.ndarray, quota: Quota) -> None:
        self._foresight, self._quota = foresight, quota
        self._best = best.astype(np.float32)
        self.rows: list[int] = []

    def pairs_left(self) -> float:
        """About how many pairs (x, c) have k(x, c) above best[x]; infinite if another guess is cheaper than a list."""
        n = self._foresight.pool.n
        if n <= _SMALL:
            return n * n
        share = _share_above(self._foresight.on_few, self._best[self._foresight.few])
        pairs = 1.1 * share * n * n
        return pairs if share <= _DENSE else float("inf")

    def next_pick(self) -> int | None:
        """The row that is likely picked next; None when no more should be guessed."""
        if len(self.rows) >= MOST or not self._quota.mask.any():
            return None
        f, feasible = self._foresight, self._quota.mask
        gains = _gains(f.on_few, self._best[f.few])
        gains[~feasible] = -1
        candidates = largest(gains, _LOOK)
        region, closest = self._region()
        keep = candidates[largest(self._gains_of(candidates, f.many), _KEEP)]
        keep = np.union1d(keep, region[largest(self._gains_of(region, f.many), _KEEP)])
        keep = np.union1d(keep, closest)
        keep = keep[feasible[keep]]
        gains = self._gains_of(keep, None)
        return int(keep[np.argmax(gains)]) if len(keep) and gains.max() > 0 else None

    def _region(self) -> tuple[np.ndarray, np.ndarray]:
        """Feasible rows around the best feasible scout, and the closest of them."""
        f, feasible = self._foresight, self._quota.mask
        gains = _gains(f.on_many, self._best[f.many])
        gains[~feasible[f.scouts]] = -1
        scouts: np.ndarray = f.scouts[largest(gains, _SCOUTS)]
        scouts = scouts[feasible[scouts]]
        if len(scouts) == 0:
            return scouts, scouts
        best = scouts[[int(np.argmax(self._gains_of(scouts, None)))]]
        closeness = f.values(best)[0]
        closeness[~feasible] = -np.inf
        room = int(feasible.sum())
        return largest(closeness, min(_LOOK, room)), largest(closeness, min(_KEEP, room))

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
        for start in range(0, f.pool.n if points is None else len(points), 8192):
            if points is None:
                stop = min(start + 8192, f.pool.n)
                tile, best = f.pool.tile(start, stop), self._best[start:stop]
            else:
                chosen = points[start : start + 8192]
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
def _share_above(values: np.ndarray, best: np.ndarray) -> float:
    above = 0
    for p in numba.prange(values.shape[0]):
        count = 0
        for c in range(values.shape[1]):
            count += values[p, c] > best[p]
        above += count
    return above / values.size
