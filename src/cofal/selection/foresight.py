"""Guessing the next picks of a kernel coverage cheaply, so that one sweep over all pairs can check several of them.

A guess may be wrong: it then costs another sweep, never a wrong pick.
"""

from __future__ import annotations

import numba
import numpy as np

from cofal.selection.greedy import Quota
from cofal.selection.kernels import Kernel
from cofal.selection.pool import Pool

MOST = 32  # picks foreseen at once
_DENSE = 0.08  # share of all pairs beyond which another guess is cheaper than listing the pairs
_SMALL = 1024  # pools up to this size list all their pairs


class Foresight:
    """Kernel values between a few sample points and all rows, made once and used for every guess."""

    def __init__(self, pool: Pool, kernel: Kernel, rng: np.random.Generator) -> None:
        self.pool, self.kernel = pool, kernel
        sample = rng.permutation(pool.n)
        self.coarse = np.sort(sample[: min(512, max(1, pool.n // 64))])  # points for a first look at all candidates
        self.fine = np.sort(sample[: min(4096, max(1, pool.n // 8))])  # points for a second look at the better ones
        self._values: np.ndarray | None = None

    def coarse_values(self) -> np.ndarray:
        """(coarse points, n) float32 kernel values."""
        if self._values is None:
            units = self.pool.rows(self.coarse)
            values = np.empty((len(self.coarse), self.pool.n), dtype=np.float32)
            for start in range(0, self.pool.n, 8192):
                stop = min(start + 8192, self.pool.n)
                values[:, start:stop] = self.kernel.tile(units, self.pool.tile(start, stop))
            self._values = values
        return self._values

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
        """About how many pairs (x, c) have k(x, c) above best[x]; 0 once listing them all is cheap anyway."""
        n = self._foresight.pool.n
        if n <= _SMALL:
            return n * n
        share = _share_above(self._foresight.coarse_values(), self._best[self._foresight.coarse])
        pairs = 1.1 * share * n * n
        return pairs if share <= _DENSE else float("inf")

    def next_pick(self) -> int | None:
        """The row that is likely picked next; None when no more should be guessed."""
        if len(self.rows) >= MOST or not self._quota.mask.any():
            return None
        f = self._foresight
        gains = _gains(f.coarse_values(), self._best[f.coarse])
        gains[~self._quota.mask] = -1
        keep = largest(gains, min(1024, max(64, f.pool.n // 32)))
        keep = keep[largest(self._gains_of(keep, f.fine), 64)]
        gains = self._gains_of(keep, None)
        row = int(keep[np.argmax(gains)])
        return row if gains.max() > 0 and self._quota.mask[row] else None

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
