"""Accuracy-budget curves: area, mean height, and the paper's empirical coordination gap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cofal.errors import UserError


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
