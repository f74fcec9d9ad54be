"""The grid of `cofal reproduce auto` place by place, a place being a set, split, number of clients and selector.

The view and the claim both read it: what the three kinds of coordination reach, and what `advise` foretold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cofal.evaluation.curves import mean_height
from cofal.evaluation.statistics import Estimate, estimate
from cofal.reproduce.book import Book
from cofal.reproduce.records import Record


@dataclass(frozen=True)
class Place:
    """One place of the grid; arrays have one value per seed, areas are mean accuracies over the budgets in percent."""

    set: str
    split: str
    clients: int
    method: str
    central: np.ndarray
    per_client: np.ndarray
    auto: np.ndarray
    central_wins: np.ndarray  # chance that `advise` gave to central coordination
    overlap: np.ndarray
    decisions: list[str]  # central | per-client | mixed, of each seed's first budget

    @property
    def gap(self) -> Estimate:
        """The coordination gap (%) over seeds."""
        return estimate((100 * (self.central - self.per_client) / self.central).tolist())

    @property
    def lead(self) -> Estimate:
        """Auto less the better of the two (%), over seeds; the better one is the one of the larger mean."""
        better = self.central if self.central.mean() >= self.per_client.mean() else self.per_client
        return estimate((100 * (self.auto - better) / better.mean()).tolist())

    def over(self, other: np.ndarray) -> list[float]:
        """Auto less `other` (%), seed by seed."""
        return (100 * (self.auto - other) / other).tolist()

    @property
    def significant(self) -> bool:
        """Is the sign of the gap beyond doubt?"""
        return self.gap.low > 0 or self.gap.high < 0

    @property
    def foretold(self) -> bool:
        """Did `advise` name the better of the two?"""
        return bool((self.central_wins.mean() > 0.5) == (self.gap.mean > 0))


def places(book: Book) -> list[Place]:
    """All places of which the three kinds of coordination are there, in the order of the grid."""
    sizes = sorted({record.cell.clients for record in book.records})
    found = []
    for name in book.sets:
        for method in book.methods:
            for clients in sizes:
                for split in book.splits:
                    rows = {
                        kind: book.of(name, split, f"{method}-{kind}", clients)
                        for kind in ("central", "per-client", "auto")
                    }
                    if all(rows.values()):
                        found.append(_place(name, split, clients, method, rows))
    return found


def _place(name: str, split: str, clients: int, method: str, rows: dict[str, list[Record]]) -> Place:
    told = [record.result["auto"] for record in rows["auto"]]
    return Place(
        name, split, clients, method,
        central=_areas(rows["central"]),
        per_client=_areas(rows["per-client"]),
        auto=_areas(rows["auto"]),
        central_wins=np.array([each["central_wins"] for each in told]),
        overlap=np.array([each["overlap"] for each in told]),
        decisions=[each["decision"] for each in told],
    )  # fmt: skip


def _areas(records: list[Record]) -> np.ndarray:
    return np.array([100 * mean_height(record.cell.budgets, record.accuracy) for record in records])
