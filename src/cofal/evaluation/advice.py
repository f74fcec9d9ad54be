"""What coordination is worth to clients who have not labelled anything yet: `cofal advise`, as numbers and in words.

All of it rests on the numbers of each client's rows in common cells, and on the radius estimate; no label is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.evaluation.theory import best_coverage, expected_coverage, hit_probabilities, redundancy_gap
from cofal.rng import generator
from cofal.selection.auto import Decision, decide
from cofal.selection.overlap import Z95, Overlap, cell_counts, resampled
from cofal.selection.pool import Budgets, Pool
from cofal.selection.radius import estimate_radius
from cofal.selection.worth import divide_by_worth

METHOD = "maxherding"  # the best of the three selectors, or close to it, on every set tried (docs/auto.md)
_RESAMPLES = 100
_ROWS_PER_CELL = 4


@dataclass(frozen=True)
class Forecast:
    """A number with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def as_list(self) -> list[float]:
        return [round(self.value, 2), round(self.low, 2), round(self.high, 2)]


@dataclass(frozen=True)
class Advice:
    """What to tell the consortium."""

    budgets: list[int]  # labels of each client
    decision: Decision  # how alike the clients are, and who should choose with whom where kinds are not told apart
    cells: int  # in which redundancy is counted: as many as labels, where the clients have the rows
    redundant: Forecast  # labels that would repeat another client's if all chose alone
    saved: Forecast  # labels that choosing together saves
    radius: float | None  # ProbCover's, for these embeddings; None where nobody sees them

    @property
    def overlap(self) -> Overlap:
        return self.decision.overlap

    @property
    def by_kind(self) -> bool:
        """Whether auto sees the embeddings, so that a pick can count for images of its own kind."""
        return self.radius is not None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "budgets": self.budgets,
            **self.decision.as_dict(),
            "by_kind": self.by_kind,
            "cells": self.cells,
            "redundant_labels": self.redundant.as_list(),
            "saved_labels": self.saved.as_list(),
            "central_wins": round(self.decision.central_wins, 3),
            "recommended": {
                "method": METHOD,
                "coordination": "auto",
                "delta": "auto" if self.radius is None else round(self.radius, 4),
            },
        }

    def in_words(self, names: Sequence[str]) -> list[str]:
        """A few lines that need no knowledge of the method."""
        low, high = self.overlap.interval
        total = sum(self.budgets)
        lines = [
            f"How alike: {min(self.overlap.mean, 1):.0%} ({low:.0%} to {high:.0%}), where 100% means that the clients' "
            "images could come from one source and 0% that they have nothing in common.",
            f"If each client chooses alone, about {self.redundant.value:.0f} of {total} labels "
            f"({self.redundant.low:.0f} to {self.redundant.high:.0f}) would repeat what another client labels.",
        ]
        likely = max(self.decision.central_wins, 1 - self.decision.central_wins)
        sure = "almost certainly" if likely > 0.95 else "probably" if likely > 0.75 else "perhaps"
        if self.decision.kind == "central":
            lines.append(
                f"Choosing together saves about {self.saved.value:.0f} labels "
                f"({self.saved.low:.0f} to {self.saved.high:.0f}) and {sure} gives the better model ({likely:.0%})."
            )
        elif self.decision.kind == "per-client":
            lines.append(
                f"What looks alike at different clients is {sure} of different kinds ({likely:.0%}): choosing as if "
                "all images were of one source would neglect some of them."
            )
        else:
            extreme = "together" if self.decision.central_wins > 0.5 else "alone"
            lines.append(
                f"Only some clients are alike: {self._groups(names)}. If all did the same, "
                f"choosing {extreme} would {sure} do better ({likely:.0%})."
            )
        instead = "" if self.radius is None else f" (with probcover instead, --delta {self.radius:.2f})"
        lines.append(
            f"Shares: {', '.join(f'{name} {budget}' for name, budget in zip(names, self.budgets))} labels. Use "
            f"--method {METHOD} --coordination auto{instead}: {self._what_auto_does(names)}."
        )
        if self.decision.certainty < 0.9:
            lines.append(
                f"The clients are near a border: in {self.decision.certainty:.0%} of samples drawn again from their "
                "images the advice stays the same. More unlabelled images would settle it."
            )
        return lines

    def _groups(self, names: Sequence[str]) -> str:
        groups = [group for group in self.decision.groups if len(group) > 1]
        return ", ".join(" and ".join(names[client] for client in group) for group in groups)

    def _what_auto_does(self, names: Sequence[str]) -> str:
        if self.by_kind:
            return "it chooses for all at once, and each pick counts for images of its own kind"
        if self.decision.kind == "central":
            return "all choose together"
        if self.decision.kind == "per-client":
            return "each client chooses alone"
        return f"{self._groups(names)} choose together, the others alone"


def advise(embeddings: Sequence[np.ndarray], budgets: Sequence[int] | int, seed: int = 0) -> Advice:
    """Advice for clients with these (n_k, d) embeddings and `budgets`: one number per client, or one in all."""
    pool = Pool(embeddings)
    if pool.clients < 2:
        raise UserError("advice on coordination needs at least two clients; give --client once for each")
    if np.sum(budgets) < 1:
        raise UserError(f"budget {budgets} asks for nothing; give the number of labels, 1 or more in all")
    if isinstance(budgets, int | np.integer):
        budgets = divide_by_worth(int(budgets), pool, generator(seed, "worth"))
    own = Budgets(budgets, pool).per_client.tolist()
    decision = decide(pool)
    rng = generator(seed, "advice")
    counts = cell_counts(pool, max(1, min(sum(own), pool.n // _ROWS_PER_CELL)), rng)
    radius = estimate_radius(pool, generator(seed, "radius"))
    return advise_from(decision, counts, own, rng, radius)


def advise_from(
    decision: Decision, counts: np.ndarray, budgets: list[int], rng: np.random.Generator, radius: float | None = None
) -> Advice:
    """Advice from the clients' rows in about as many common cells as there are labels, `counts` (clients, cells)."""
    again = resampled(counts, _RESAMPLES, rng)
    return Advice(
        budgets=budgets,
        decision=decision,
        cells=counts.shape[1],
        redundant=_forecast(_redundant, counts, again, budgets),
        saved=_forecast(_saved, counts, again, budgets),
        radius=radius,
    )


def _chances(counts: np.ndarray, budgets: Sequence[int]) -> np.ndarray:
    """(clients, cells) how likely each client labels in each cell when all choose alone and none wastes a label."""
    return np.stack([hit_probabilities(own, budget, "efficient") for own, budget in zip(counts, budgets)])


def _redundant(counts: np.ndarray, budgets: Sequence[int]) -> float:
    return redundancy_gap(_chances(counts, budgets))


def _saved(counts: np.ndarray, budgets: Sequence[int]) -> float:
    """Cells that the best choice together covers beyond those expected of clients who choose alone."""
    return best_coverage(counts, budgets) - expected_coverage(_chances(counts, budgets))


def _forecast(of: Any, counts: np.ndarray, again: np.ndarray, budgets: list[int]) -> Forecast:
    value = float(of(counts, budgets))
    error = float(np.std([of(each, budgets) for each in again]))
    most = float(sum(budgets))
    return Forecast(value, min(max(0.0, value - Z95 * error), most), min(value + Z95 * error, most))
