"""Kernel coverage of one's own kind: a candidate is worth what it newly covers of rows that are likely of its kind.

In plain coverage a candidate also gets credit for rows of other kinds that happen to lie close, so the greedy prefers
rows on the border between kinds, which are typical of none. Every pick still covers what lies close, whoever holds it:
nothing is asked for twice. Only where the holders make it less likely that two rows are of one kind than their places
do, a pick covers less. Clients of one source are thus treated as one, and clients that have nothing in common choose
nearly as they would alone.
"""

from __future__ import annotations

import numba
import numpy as np

from cofal.selection.greedy import Quota
from cofal.selection.kernels import Kernel
from cofal.selection.kinds import Kindred
from cofal.selection.pool import Pool
from cofal.selection.steps import steps

_BATCH = 32  # candidates looked at together
_TINY = 1e-6  # added to chances that are divided by
_CLOSE = 1e-5  # gains that differ by no larger share are equal: they come from float32 products, whose last digits
# depend on the number of threads


class KindCoverage:
    """The gain of c is the sum over rows x of credit(c, x) max(0, k(x, c) - best(x)).

    credit is the chance that both are of one kind, and for rows of one client how unlike the clients are besides.
    best(x) is the largest share(x, p) k(x, p) of a pick or labelled row p; share is 1 within a client, and across
    clients the root of what the holders leave of the chance that both are of one kind. Gains only fall as picks are
    made, so a row is looked at again only when what it gained the last time could still be the most. Kernel values
    and credits of all pairs are kept where they fit into half of `memory_limit`; the picks do not depend on it.
    """

    def __init__(self, pool: Pool, kernel: Kernel, kindred: Kindred, memory_limit: int) -> None:
        self._pool, self._kernel, self._kindred = pool.in_memory(), kernel, kindred
        self._kept = np.full(pool.n, -1)  # where the pairs of a row are kept
        self._pairs = np.empty((2, pool.n if 16 * pool.n**2 <= memory_limit else 0, pool.n), np.float32)
        self._next = 0
        self._best = np.zeros(pool.n, np.float32)
        for row in np.flatnonzero(pool.labeled):
            self._cover(int(row))
        self._bounds, self._fresh = np.full(pool.n, np.inf), np.zeros(pool.n, bool)

    def candidates(self, quota: Quota) -> tuple[np.ndarray, np.ndarray]:
        """The feasible rows that gain the most, within rounding, and what they gain."""
        with steps("gains", int(np.isinf(self._bounds[quota.mask]).sum())) as advance:
            while True:
                bounds = np.where(quota.mask, self._bounds, -np.inf)
                known = bounds[self._fresh & quota.mask]
                least = (1 - _CLOSE) * known.max() if len(known) else -np.inf
                stale = np.flatnonzero(quota.mask & ~self._fresh & (bounds >= least))
                if len(stale) == 0:
                    break
                if len(stale) > _BATCH:
                    stale = np.sort(stale[np.argpartition(-bounds[stale], _BATCH - 1)[:_BATCH]])
                self._bounds[stale], self._fresh[stale] = self._gains(stale), True
                advance(len(stale))
        rows = np.flatnonzero(quota.mask & (bounds >= least))
        return rows, np.full(len(rows), bounds[rows].max())

    def add(self, row: int) -> float:
        """Pick `row`; returns its gain."""
        gain = float(self._gains(np.array([row]))[0])
        self._cover(row)
        self._fresh[:] = False
        return gain

    def restart(self) -> None:
        """Nothing counts as covered any more."""
        self._best[:] = 0
        self._bounds[:] = np.inf
        self._fresh[:] = False

    def _gains(self, rows: np.ndarray) -> np.ndarray:
        """(len(rows),) float64."""
        values, credits = self._of(rows)
        return _weighted_gains(values, credits, self._best)

    def _of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(len(rows), n) float32 each: kernel values of `rows` to all rows, and their credits for them."""
        if len(self._pairs[0]) == 0:
            return self._made(rows)
        fresh = rows[self._kept[rows] < 0]
        if len(fresh):
            self._kept[fresh] = np.arange(self._next, self._next + len(fresh))
            self._pairs[:, self._kept[fresh]] = self._made(fresh)
            self._next += len(fresh)
        return self._pairs[0, self._kept[rows]], self._pairs[1, self._kept[rows]]

    def _made(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        common, owner = self._kindred.common, self._pool.owner
        credits = common[rows] @ common.T
        credits += np.float32(self._kindred.unlike) * (owner[rows, None] == owner)
        return self._kernel.tile(self._pool.rows(rows), self._pool.tile(0, self._pool.n)), credits

    def _cover(self, row: int) -> None:
        mine = self._pool.owner == self._pool.owner[row]
        together, places = (chances @ chances[row] for chances in (self._kindred.common, self._kindred.blind))
        share = np.where(mine, 1, np.sqrt(np.minimum(together / (places + _TINY), 1)))
        values, _ = self._of(np.array([row]))
        np.maximum(self._best, (values[0] * share).astype(np.float32), out=self._best)


@numba.njit(cache=True)
def _weighted_gains(values: np.ndarray, credits: np.ndarray, best: np.ndarray) -> np.ndarray:
    """(candidates,) float64 sums over points p of credits[c, p] max(0, values[c, p] - best[p])."""
    gains = np.zeros(len(values))
    for c in range(len(values)):
        total = 0.0
        for p in range(len(best)):
            rise = values[c, p] - best[p]
            if rise > 0:
                total += np.float64(credits[c, p]) * np.float64(rise)
        gains[c] = total
    return gains
