"""Cells, coverage, redundancy and class balance of picks."""

import numpy as np
import pytest

from cofal.evaluation.picks import class_balance, divide_into_cells, histograms, measure
from cofal.evaluation.theory import redundancy_gap
from cofal.rng import generator

CELLS = [np.array([0, 0, 1, 2]), np.array([0, 2, 3])]
LABELS = [np.array([5, 5, 1, 0]), np.array([5, 0, 0])]


def test_measures_of_picks_by_hand():
    found = measure([(0, 0), (1, 0), (0, 1), (0, 2), (1, 2)], CELLS, LABELS, classes=6)
    assert (found.coverage, found.local_coverage, found.redundancy) == (
        3,
        4,
        1,
    )  # cells 0, 1, 3; both pay for 0
    assert found.classes_found == 3
    shares = np.array([3, 1, 1]) / 5
    assert found.class_balance == pytest.approx(-(shares * np.log(shares)).sum() / np.log(6))


def test_no_picks_cover_nothing():
    found = measure([], CELLS, LABELS, classes=6)
    assert (found.coverage, found.redundancy, found.classes_found, found.class_balance) == (0, 0, 0, 0)


def test_balance_is_one_for_equal_counts_and_zero_for_one_class():
    assert class_balance(np.array([4, 4, 4])) == pytest.approx(1)
    assert class_balance(np.array([0, 9, 0])) == 0


def test_measured_redundancy_is_the_theorys_with_certain_picks():
    """With a[k, m] in {0, 1} the gap is a plain count."""
    order = [(0, 0), (0, 2), (1, 0), (1, 1)]
    a = np.zeros((2, 4))
    for client, row in order:
        a[client, CELLS[client][row]] = 1
    assert measure(order, CELLS, LABELS, 6).redundancy == redundancy_gap(a)


def test_cells_are_those_of_the_rows_whatever_the_client():
    rng = generator(0, "cells")
    centers = np.eye(6)
    rows = [centers[rng.integers(0, 6, 40)] + 0.05 * rng.normal(size=(40, 6)) for _ in range(3)]
    cells = divide_into_cells(rows, 6)
    assert histograms(cells, 6).sum() == 120
    nearest = [(own @ centers.T).argmax(1) for own in rows]
    pairs = {(int(c), int(n)) for own, true in zip(cells, nearest) for c, n in zip(own, true)}
    assert len(pairs) == 6  # one cell a centre
