"""Verdicts follow from intervals: books with known answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cofal.evaluation.statistics import Estimate
from cofal.reproduce.book import Book
from cofal.reproduce.cells import Cell
from cofal.reproduce.claims import CLAIMS, verdict
from cofal.reproduce.claims.budgets import labels_needed
from cofal.reproduce.claims.checks import Check, Verdict
from cofal.reproduce.grid import load_experiment
from cofal.reproduce.records import Record
from cofal.reproduce.scales import load_scale

SCALE = load_scale("cpu")


def book(name: str, accuracy: Callable[[Cell, int], float]) -> Book:
    """The book of a name at cpu scale, with accuracies (%) by cell and budget."""
    experiment = load_experiment(name)
    records = [
        Record(cell, {"accuracy": [accuracy(cell, budget) / 100 for budget in cell.budgets]}, 1.0, {})
        for cell in experiment.cells("cpu", SCALE)
    ]
    return Book(experiment, SCALE, records)


def wobble(cell: Cell, size: float = 0.3) -> float:
    """A small difference between seeds, the same for the systems of one seed plus a little of their own."""
    return size * (cell.seed - 1) + 0.1 * size * (sum(map(ord, cell.system)) % 3)


def test_clear_gaps_hold_and_their_reverse_does_not() -> None:
    def ahead(cell: Cell, budget: int) -> float:
        return (60 if "central" in cell.system else 50) + wobble(cell)

    assert verdict("iid-gap", book("table-same-embedding", ahead)).word == "holds"
    assert verdict("iid-gap", book("table-same-embedding", lambda c, b: 110 - ahead(c, b))).word == "does not hold"


def test_a_gap_within_the_noise_is_in_doubt() -> None:
    def noisy(cell: Cell, budget: int) -> float:
        lead = 1.0 if "central" in cell.system else 0.0
        return 50 + lead + (5 * (cell.seed - 1) if "central" in cell.system else 0)

    assert verdict("iid-gap", book("table-same-embedding", noisy)).word == "holds, within doubt"


def test_the_reversal_needs_a_fall_and_a_negative_gap() -> None:
    steps = {"iid": 0, "dirichlet-10": 1, "dirichlet-1": 2, "dirichlet-0.1": 3}

    def falls_to(last: float) -> Callable[[Cell, int], float]:
        def accuracy(cell: Cell, budget: int) -> float:
            gap = 10 + (last - 10) * steps[cell.on.name] / 3
            return 50 + (gap if "central" in cell.system else 0) + wobble(cell)

        return accuracy

    assert verdict("heterogeneity", book("fig-alpha", falls_to(-4))).word == "holds"
    assert verdict("heterogeneity", book("fig-alpha", falls_to(4))).word == "holds in part"
    assert verdict("heterogeneity", book("fig-alpha", falls_to(14))).word == "does not hold"


def test_the_pipeline_must_win_at_every_budget() -> None:
    def ahead(cell: Cell, budget: int) -> float:
        return (40 if cell.system.startswith("ono-") else 50) + wobble(cell)

    def not_with_few(cell: Cell, budget: int) -> float:
        return ahead(cell, budget) if budget > 10 or not cell.system.startswith("ono-") else 60

    assert verdict("pipeline", book("table-full-pipeline", ahead)).word == "holds"
    assert verdict("pipeline", book("table-full-pipeline", not_with_few)).word == "holds in part"


def test_noise_that_costs_much_is_not_harmless() -> None:
    def costs(points: float) -> Callable[[Cell, int], float]:
        return lambda cell, budget: 50 - (points if "perturbed" in cell.system else 0) + wobble(cell, 0.1)

    assert verdict("perturbation", book("table-perturbation", costs(0))).word == "holds"
    assert verdict("perturbation", book("table-perturbation", costs(5))).word == "does not hold"


def test_aggregates_must_be_close_to_central_and_above_alone() -> None:
    def between(cell: Cell, budget: int) -> float:
        return {"central": 60.0, "aggregate": 59.5, "per-client": 50.0}[cell.system.partition("-")[2]] + wobble(cell)

    assert verdict("aggregate", book("table-aggregate", between)).word == "holds"
    far = book("table-aggregate", lambda c, b: 40 + wobble(c) if c.system.endswith("aggregate") else between(c, b))
    assert verdict("aggregate", far).word == "does not hold"


def test_labels_needed_reads_a_curve_on_a_logarithmic_axis() -> None:
    budgets, curve = [10, 100, 1000], [20.0, 40.0, 60.0]
    assert labels_needed(budgets, curve, 40.0) == pytest.approx(100)
    assert labels_needed(budgets, curve, 30.0) == pytest.approx(np.sqrt(10 * 100))
    assert labels_needed(budgets, curve, 10.0) == 10
    assert labels_needed(budgets, curve, 99.0) == 1000  # never reached: at least this many


def test_high_budgets() -> None:
    def curve(cell: Cell, budget: int) -> float:
        base = 20 * np.log10(budget) + wobble(cell)
        if "central" in cell.system:
            return base + (12 if budget <= 100 else -3)
        return base

    found = book("fig-high-budget", curve)
    assert verdict("high-budget", found).word == "holds"
    assert verdict("uncertainty", found).word == "holds"
    same = book("fig-high-budget", lambda c, b: 20 * np.log10(b) + wobble(c))
    assert verdict("high-budget", same).word == "does not hold"


def test_one_seed_says_nothing_for_certain() -> None:
    unknown = Estimate(5.0, float("nan"), -float("inf"), float("inf"), 1)
    assert Verdict(CLAIMS["iid-gap"], [Check("x", unknown, "%", True, False)]).word == "holds, within doubt"
    assert Verdict(CLAIMS["iid-gap"], []).word == "does not hold"
