"""Claims 6 and 7: few coordinated labels against many others, and when uncertainty overtakes diversity."""

from __future__ import annotations

import numpy as np

from cofal.evaluation.statistics import estimate
from cofal.reproduce.book import Book
from cofal.reproduce.claims.checks import Check, above, below, of_the_paper
from cofal.reproduce.naming import system_title

SEVERAL = 2.0  # times the labels
UNCERTAIN = ("s-al-entropy", "f-al-entropy", "f-al-margin")
RIVALS = ("kafal", "logo")


def high_budget(book: Book) -> list[Check]:
    """Labels that a rival needs for what coordinated ProbCover reaches with few, as a multiple of those few."""
    checks = []
    for name in book.sets:
        ours = book.curves(name, "iid", "probcover-central")
        assert ours is not None
        for rival in RIVALS:
            theirs = book.curves(name, "iid", rival)
            assert theirs is not None
            for few in book.scale.sets[name].budgets[1:]:
                step = ours.budgets.index(few)
                times = [
                    labels_needed(theirs.budgets, row, goal[step]) / few
                    for goal, row in zip(ours.accuracy, theirs.accuracy, strict=True)
                ]
                found = estimate(times)
                what = f"labels {system_title(rival)} needs for what ours reaches with {few}"
                checks.append(Check(what, found, "times", found.mean >= SEVERAL, found.low > 1))
    return checks


def labels_needed(budgets: list[int], accuracy: list[float], goal: float) -> float:
    """The number of labels at which a curve first reaches `goal`, between budgets by straight lines over log labels.

    A curve that never does is given its last budget: then the true number is larger.
    """
    for step, value in enumerate(accuracy):
        if value >= goal:
            if step == 0 or value == accuracy[step - 1]:
                return float(budgets[step])
            share = (goal - accuracy[step - 1]) / (value - accuracy[step - 1])
            low, high = np.log(budgets[step - 1]), np.log(budgets[step])
            return float(np.exp(low + share * (high - low)))
    return float(budgets[-1])


def uncertainty(book: Book) -> list[Check]:
    """Mean of the three diversity selectors less that of the uncertainty ones: at few labels, and at the most."""
    checks = []
    for name in book.sets:
        few = book.scale.sets[name].budgets[-1]
        first = book.curves(name, "iid", UNCERTAIN[0])
        assert first is not None
        for step, budget in enumerate(first.budgets):
            if budget > few and budget != first.budgets[-1]:
                continue
            diverse = _mean_at(book, name, [f"{method}-central" for method in of_the_paper(book)], step)
            unsure = _mean_at(book, name, [system for system in UNCERTAIN if system in book.systems], step)
            check = above if budget <= few else below
            what = f"diversity − uncertainty at {budget} labels, {book.title(name)}"
            checks.append(check(what, (diverse - unsure).tolist(), "points"))
    return checks


def _mean_at(book: Book, name: str, systems: list[str], step: int) -> np.ndarray:
    """(seeds,) accuracy at a budget, averaged over systems."""
    curves = [book.curves(name, "iid", system) for system in systems]
    return np.mean([[row[step] for row in curve.accuracy] for curve in curves if curve is not None], axis=0)
