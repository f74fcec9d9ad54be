"""Kernel coverage as an objective of the greedy: F(S) = sum over rows x of max over picks c in S of k(x, c).

With a top-hat kernel this is the number of rows within a ball of a pick. How it stays fast and exact is told in
docs/selection.md: foresee a few picks, check them all in one sweep over the pairs, then work on the short list of pairs
that can still matter; near-ties are settled in float64.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from cofal.rng import generator
from cofal.selection import foresight
from cofal.selection.foresight import Foresight, largest
from cofal.selection.greedy import TIE, Quota
from cofal.selection.kernels import Kernel
from cofal.selection.kmeans import content_hash
from cofal.selection.pairs import BYTES_PER_PAIR, PairList
from cofal.selection.pool import Pool
from cofal.selection.rowvalues import RowValues
from cofal.selection.steps import steps
from cofal.selection.sweep import sweep, tile_size

MEMORY_LIMIT = 2 << 30  # bytes
LIST_SHARE = 0.6  # of the memory limit may go to the pair list; the rest is for tiles, stages and the rows themselves
_BATCH = 64  # candidates whose kernel values to all rows are made together


class KernelCoverage:
    """The objective over one pool; the pool's labelled rows are covered from the start."""

    def __init__(self, pool: Pool, kernel: Kernel, memory_limit: int = MEMORY_LIMIT) -> None:
        self._pool = pool.in_memory(memory_limit // 8)
        self._kernel = kernel
        self._capacity = int(memory_limit * LIST_SHARE) // BYTES_PER_PAIR
        self._best = np.zeros(pool.n)  # (n,) kernel value of the best pick for each row, float64
        self._near = RowValues(self._pool, kernel)
        self._foresight = Foresight(self._pool, kernel, generator(0, "foresight"))
        self._gained = np.full(pool.n, np.inf)  # (n,) float64 gain of each row when last looked at in this pass
        self._mistaken = False  # whether a guess was wrong: where rows are hard to tell apart, long lists are better
        self._caution = 1.0  # grows when a gain is found further off than expected
        self._forget()
        labeled = np.flatnonzero(pool.labeled)
        for start in range(0, len(labeled), _BATCH):
            self._near.load(labeled[start : start + _BATCH])
            for row in labeled[start : start + _BATCH]:
                self._best = self._raised(self._best, int(row))

    def candidates(self, quota: Quota) -> tuple[np.ndarray, np.ndarray]:
        """The feasible rows whose gain may be the greatest; their gains are settled in float64 if there are several."""
        if self._gains is None:
            self._look_ahead(quota)
        assert self._gains is not None
        gains = np.where(quota.mask, self._gains[self._stage], -np.inf)
        top = float(gains.max())
        slack = 0.0 if self._kernel.exact else self._slack(top)
        rows = np.flatnonzero(gains >= top - 2 * slack)
        if slack > 0 and (len(rows) > 1 or top < 4 * slack):  # the second: it may be no gain at all
            return self._settled(rows, gains[rows] + slack)
        if not self._near.has(int(rows[0])):
            self._near.load(largest(gains, _BATCH))  # the next picks are likely among them
        return rows, gains[rows]

    def add(self, row: int) -> float:
        """Pick `row`; returns its gain, from float64 kernel values."""
        before = self._best
        self._best = self._raised(before, row)
        points = np.flatnonzero(self._best > before)
        gain = float((self._best[points] - before[points]).sum())
        assert self._gains is not None
        self._heed(gain, float(self._gains[self._stage, row]), len(points))
        if self._stage < len(self._foreseen) and self._alike(row, self._foreseen[self._stage]):
            self._stage += 1
        elif self._stage == len(self._foreseen) and self._pairs is not None:
            old, new = before[points].astype(np.float32), self._best[points].astype(np.float32)
            self._pairs.lower_gains(self._gains[self._stage], points, old, new)
        else:
            self._mistaken = self._mistaken or self._stage < len(self._foreseen)
            self._forget()
        return gain

    def restart(self) -> None:
        """Nothing counts as covered any more."""
        self._best = np.zeros(self._pool.n)
        self._gained[:] = np.inf
        self._forget()

    def _forget(self) -> None:
        self._gains: np.ndarray | None = None  # (stages, n) gains before the first foreseen pick, the second, ...
        self._foreseen: list[int] = []
        self._stage = 0  # foreseen picks that came true
        self._pairs: PairList | None = None  # pairs that matter after the last foreseen pick
        self._support = self._pool.n  # rows that the last pick raised

    def _look_ahead(self, quota: Quota) -> None:
        """Foresee picks until the pairs that matter fit in memory, then sweep over all pairs once."""
        self._forget()
        stages = [self._best]
        foreseen = self._foresight.begin(self._best, quota, dense=self._mistaken)
        with steps("looking ahead", foresight.MOST) as advance:
            while (expected := foreseen.pairs_left()) > self._capacity and (row := foreseen.next_pick()) is not None:
                stages.append(self._raised(stages[-1], row))
                foreseen.confirm(row, stages[-1])
                advance(1)
        if expected <= self._capacity:
            self._pairs = PairList(self._pool.n, tile_size(self._pool.n), self._capacity)
        self._foreseen = foreseen.rows
        self._gains = sweep(self._pool, self._kernel, np.array(stages, dtype=np.float32), self._pairs)
        if self._pairs is not None and self._pairs.full:
            self._pairs = None

    def _slack(self, top: float) -> float:
        """How far a float32 gain near `top` may be from the float64 one."""
        return self._caution * (2e-5 * abs(top) + self._kernel.noise * (8 + 0.1 * self._support))

    def _heed(self, gain: float, estimate: float, support: int) -> None:
        """Compare a gain with its estimate, and trust the estimates less if that was close to the slack."""
        if not self._kernel.exact:
            error, slack = abs(gain - estimate), self._slack(gain)
            if error > slack / 4:
                self._caution *= max(2.0, 8 * error / slack)
        self._support = support

    def _alike(self, a: int, b: int) -> bool:
        """Whether two rows are one and the same or copies, whose picks have the same effect."""
        return a == b or bool((self._pool.tile(a, a + 1) == self._pool.tile(b, b + 1)).all())

    def _settled(self, rows: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of `rows` that may gain the most, and their float64 gains, each summed in the order of the points.

        `bounds` are above the gains; so is what a row gained when it was last looked at, since gains only fall. Rows
        are looked at from the highest bound down to where none can reach the best, copies of a row once. Without the
        earlier gains, tight clusters that are covered up to rounding would be looked at whole for every pick.
        """
        _, firsts, which = np.unique(self._hashes[rows], return_index=True, return_inverse=True)
        most = np.full(len(firsts), np.inf)
        np.minimum.at(most, which, np.minimum(bounds, self._gained[rows]))
        gains = np.full(len(firsts), -np.inf)
        order = np.argsort(-most, kind="stable")
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            top = gains.max()
            if most[batch[0]] < top - 2 * TIE * abs(top):
                break
            self._near.load(rows[firsts[batch]])
            for place in batch:
                points, values = self._near.above(self._best, int(rows[firsts[place]]))
                gains[place] = (values - self._best[points]).sum()
        found = gains[which]
        known = found > -np.inf
        self._gained[rows[known]] = found[known]
        return rows[known], found[known]

    @cached_property
    def _hashes(self) -> np.ndarray:
        """(n,) the same number for copies of a row."""
        return content_hash(self._pool, generator(0, "copies"))

    def _raised(self, best: np.ndarray, row: int) -> np.ndarray:
        """best (n,) after `row` is picked as well."""
        points, values = self._near.above(best, row)
        raised = best.copy()
        raised[points] = values
        return raised
