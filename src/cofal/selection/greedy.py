"""The greedy and its constraint, client budgets as a partition matroid; what is maximised is an `Objective`."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from cofal.selection.pool import Budgets, Picked, Pool
from cofal.selection.steps import steps

TIE = 1e-9  # gains that differ by less than this share of the larger are equal: the lowest (client, position) is picked
NOTHING = 1e-9  # a gain below this share of the first gain of a covering pass is no gain


class Objective(Protocol):
    """A monotone set function of the picks, known through its gains."""

    def candidates(self, quota: Quota) -> tuple[np.ndarray, np.ndarray]:
        """Rows (ascending, all in `quota.mask`) among which is every row of the greatest gain, and their gains."""

    def add(self, row: int) -> float:
        """Take `row` into the set; returns its gain."""

    def restart(self) -> None:
        """Begin a new covering pass: forget what is covered, and by whom."""


class Quota:
    """Which rows may still be picked: not labelled, not yet picked, and of a client with budget left."""

    def __init__(self, pool: Pool, budgets: Budgets) -> None:
        self._owner, self._offsets = pool.owner, pool.offsets
        self.left = budgets.per_client.copy()  # (clients,) labels each client can still afford
        self.mask = ~pool.labeled & (self.left > 0)[pool.owner]  # (n,) bool

    def take(self, row: int) -> None:
        """Spend one label of the row's owner on it."""
        client = self._owner[row]
        self.mask[row] = False
        self.left[client] -= 1
        if self.left[client] == 0:
            self.mask[self._offsets[client] : self._offsets[client + 1]] = False

    def copy(self) -> Quota:
        twin = object.__new__(Quota)
        twin._owner, twin._offsets = self._owner, self._offsets
        twin.left, twin.mask = self.left.copy(), self.mask.copy()
        return twin


def greedy(objective: Objective, quota: Quota) -> Picked:
    """Pick the feasible row of the greatest gain until every budget is spent.

    When no feasible row gains anything, all that these clients can still cover is covered: a new covering pass begins,
    in which nothing counts as covered. Rows already picked stay out, so a pass never repeats one.
    """
    total = int(quota.left.sum())
    rows, gains = np.empty(total, dtype=np.int64), np.empty(total)
    fresh, first = True, 0.0  # no pick in this pass yet; gain of its first pick
    with steps("picking", total) as advance:
        for rank in range(total):
            candidates, values = objective.candidates(quota)
            if not fresh and values.max() <= NOTHING * first:
                objective.restart()
                fresh = True
                candidates, values = objective.candidates(quota)
            top = values.max()
            row = int(candidates[np.argmax(values >= top - TIE * abs(top))])
            quota.take(row)
            rows[rank], gains[rank] = row, objective.add(row)
            if fresh:
                fresh, first = False, gains[rank]
            advance(1)
    return Picked(rows, gains)
