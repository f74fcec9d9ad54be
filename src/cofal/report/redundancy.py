"""Redundancy between clients: how many picks another client's pick makes needless, by the shared embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cofal.report.facts import Facts, Pick, Shared

_BLOCK = 1 << 24  # distances held at a time


def redundant(points: np.ndarray, rows: np.ndarray, clients: np.ndarray, budgets: Sequence[int]) -> np.ndarray:
    """(len(budgets), m) bool: is pick j redundant among the first `budgets[i]` picks; False beyond them.

    `points` (n, d) are all shared embeddings, `rows` (m,) the picks in the order picked, `clients` (m,) whose they are.
    With b labels for n points, a label stands for n / b of them. A pick is redundant if a pick of another client is
    among its n / b nearest points: that client spends a label on the same region.
    """
    n, m = len(points), len(rows)
    found = np.zeros((len(budgets), m), dtype=bool)
    squared = np.einsum("nd,nd->n", points, points)
    step = max(1, _BLOCK // n)
    for begin in range(0, m, step):
        part = rows[begin : begin + step]
        distance = squared[part, None] - 2 * points[part] @ points.T + squared  # (step, n), squared
        distance[np.arange(len(part)), part] = -np.inf  # a point comes before its own duplicates
        to_picks = distance[:, rows]
        to_picks[clients[begin : begin + step, None] == clients] = np.inf
        for number, budget in enumerate(budgets):
            nearest = to_picks[:, :budget].min(axis=1, initial=np.inf)
            nearer = (distance < nearest[:, None]).sum(axis=1)  # the pick itself included
            inside = (nearer <= n / budget) & np.isfinite(nearest)
            found[number, begin : begin + step] = inside & (np.arange(begin, begin + len(part)) < budget)
    return found


class Redundancy:
    """The redundant picks of every track of a run, budget by budget."""

    def __init__(self, facts: Facts, shared: Shared):
        self.budgets = facts.budgets
        names = list(shared.ids)
        points = np.concatenate([np.asarray(shared.embeddings[name], dtype=np.float32) for name in names])
        row = {
            (name, sample): number for number, (name, sample) in enumerate((n, s) for n in names for s in shared.ids[n])
        }
        self._flags = {
            track: redundant(
                points,
                np.array([row[pick.client, pick.id] for pick in picks], dtype=np.int64),
                np.array([names.index(pick.client) for pick in picks], dtype=np.int64),
                self.budgets,
            )
            for track, picks in facts.picks.items()
        }

    def shares(self, track: tuple[str, str]) -> list[float]:
        """By budget: the share of the picks made so far that are redundant."""
        return [float(flags[:budget].mean()) for flags, budget in zip(self._flags[track], self.budgets, strict=True)]

    def since(self, track: tuple[str, str], pick: Pick) -> list[int]:
        """The budgets at which `pick` is redundant."""
        return [budget for budget, flags in zip(self.budgets, self._flags[track], strict=True) if flags[pick.rank]]
