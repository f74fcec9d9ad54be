"""Accuracy-budget curves of one seed or several: area, mean height, and the paper's empirical coordination gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cofal.errors import UserError
from cofal.evaluation.statistics import Comparison, Estimate, compare, estimate


def area(budgets: Sequence[float], accuracies: Sequence[float]) -> float:
    """Area under the accuracy-budget curve by the trapezoid rule, in accuracy times labels; budgets must rise."""
    x, y = np.asarray(budgets, dtype=np.float64), np.asarray(accuracies, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise UserError(f"a curve needs at least two budgets and as many accuracies, not {len(x)} and {len(y)}")
    if not (np.diff(x) > 0).all():
        raise UserError(f"budgets must rise, not {list(budgets)}")
    return float(np.sum((y[1:] + y[:-1]) / 2 * np.diff(x)))


def mean_height(budgets: Sequence[float], accuracies: Sequence[float]) -> float:
    """The area divided by the span of the budgets: the mean accuracy over them. One budget alone is its own mean."""
    if len(budgets) == 1:
        return float(accuracies[0])
    return area(budgets, accuracies) / float(budgets[-1] - budgets[0])


def coordination_gap(budgets: Sequence[float], central: Sequence[float], per_client: Sequence[float]) -> float:
    """100 (AUC_central - AUC_per-client) / AUC_central, in percent; negative where choosing alone wins."""
    whole = mean_height(budgets, central)
    if whole <= 0:
        raise UserError("the central curve has no area; its accuracies are all zero")
    return 100 * (whole - mean_height(budgets, per_client)) / whole


@dataclass(frozen=True)
class Curves:
    """One system's accuracies under nested budgets, one row per seed."""

    budgets: list[int]
    accuracy: list[list[float]]  # [seed][budget]

    def at(self, step: int) -> Estimate:
        """The accuracy at budget number `step`, over seeds."""
        return estimate([row[step] for row in self.accuracy])

    def heights(self) -> list[float]:
        """Seed by seed the area divided by the span of budgets."""
        return [mean_height(self.budgets, row) for row in self.accuracy]

    def versus(self, other: Curves) -> Comparison:
        """Mean height less that of `other`, paired by seed."""
        _same_budgets(self, other)
        return compare(self.heights(), other.heights())


def gap_over_seeds(central: Curves, per_client: Curves) -> Estimate:
    """The empirical coordination gap, in percent, taken seed by seed: row i of both is the same seed and split."""
    _same_budgets(central, per_client)
    rows = zip(central.accuracy, per_client.accuracy, strict=True)
    return estimate([coordination_gap(central.budgets, first, second) for first, second in rows])


def _same_budgets(first: Curves, second: Curves) -> None:
    if first.budgets != second.budgets or len(first.accuracy) != len(second.accuracy):
        raise UserError(
            f"curves over budgets {first.budgets} and {second.budgets}, {len(first.accuracy)} and "
            f"{len(second.accuracy)} seeds cannot be paired; run both on the same ones"
        )
