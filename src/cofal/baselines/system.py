"""What every system works on and gives back: a federation as arrays, nested budgets, an outcome.

The systems themselves are in the other files of this package, one paper a file; `registry.py` names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cofal.config import TrainSettings
from cofal.errors import UserError
from cofal.selection.auto import Decision


@dataclass(frozen=True)
class Own:
    """What one client's own encoder makes of its rows and of the test rows; another client's space is another."""

    rows: np.ndarray  # (n_k, d_k) unit rows
    test: np.ndarray  # (t, d_k) unit rows


@dataclass(frozen=True)
class Federation:
    """A simulated federation: every array that a system may use, and how its classifier is trained."""

    embeddings: list[np.ndarray]  # one (n_k, d) array of unit rows per client, from the shared encoder
    labels: list[np.ndarray]  # one (n_k,) int array per client; a system may read those that it has picked
    test: np.ndarray  # (t, d) unit rows from the shared encoder
    test_labels: np.ndarray  # (t,) int
    classes: int
    own: list[Own] | None = None  # one per client, for systems in which every client has its own encoder
    train: TrainSettings = field(default_factory=lambda: TrainSettings(rounds=50))
    pooled: bool = False  # train the federated head on all labels in one place: see `playing.fit_federated`

    def __post_init__(self) -> None:
        sizes = [len(rows) for rows in self.embeddings]
        if sizes != [len(own) for own in self.labels]:
            raise UserError(f"clients have {sizes} rows but {[len(own) for own in self.labels]} labels; give one a row")
        if len(self.test) != len(self.test_labels):
            raise UserError(f"{len(self.test)} test rows have {len(self.test_labels)} labels; give one label a row")
        if self.own is not None and sizes != [len(own.rows) for own in self.own]:
            raise UserError("a client's own embeddings must be of the same rows as the shared ones")

    @property
    def clients(self) -> int:
        return len(self.embeddings)


@dataclass(frozen=True)
class Outcome:
    """What a system picked under nested budgets, and how good its classifier was at each."""

    order: list[tuple[int, int]]  # (client, position) in the order picked; a budget's picks are the first so many
    budgets: list[int]  # labels in total at each step, cumulative
    accuracy: list[float]  # of the test rows, in [0, 1], one per budget
    seconds: list[float]  # selecting and training, one per budget
    rounds: int = 0  # round trips and bytes sent up by an aggregate selection; 0 for the others
    bytes_up: int = 0
    decisions: list[Decision] = field(default_factory=list)  # of a system that decides how to coordinate, one a step

    def picks(self, step: int) -> list[tuple[int, int]]:
        """The picks behind `accuracy[step]`."""
        return self.order[: self.budgets[step]]


class System(Protocol):
    """`budgets[step][client]`: labels that a client may have spent by that step, cumulative, never falling."""

    def __call__(self, federation: Federation, budgets: Sequence[Sequence[int]], seed: int) -> Outcome: ...
