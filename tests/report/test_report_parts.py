"""Behind the report: redundancy against a naive count, labels that do not overlap, the terminal's table."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from cofal.report.chart import Series, line_chart, spread
from cofal.report.redundancy import redundant
from cofal.report.summary import print_results


def naive_redundant(points, rows, clients, budgets):
    """For each pick, walk its nearest points one by one, n / b of them, and look for another client's pick."""
    found = np.zeros((len(budgets), len(rows)), dtype=bool)
    for i, budget in enumerate(budgets):
        others = dict(zip(rows[:budget], clients[:budget], strict=True))
        for j in range(min(budget, len(rows))):
            order = np.argsort(((points - points[rows[j]]) ** 2).sum(axis=1))
            near = [row for row in order if row != rows[j]][: int(len(points) // budget)]
            found[i, j] = any(row in others and others[row] != clients[j] for row in near)
    return found


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(8, 60), st.integers(1, 4))
def test_redundancy_equals_the_naive_count(seed, n, count):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 5))
    rows = rng.permutation(n)[: rng.integers(2, n // 2)]
    clients = rng.integers(0, count, len(rows))
    budgets = sorted({1, len(rows) // 2 or 1, len(rows)})
    assert (redundant(points, rows, clients, budgets) == naive_redundant(points, rows, clients, budgets)).all()


def test_twins_at_two_clients_are_redundant_and_far_picks_are_not():
    centres = np.eye(4).repeat(10, axis=0) + np.random.default_rng(0).normal(size=(40, 4)) * 1e-3
    same = redundant(centres, np.array([0, 1, 20, 21]), np.array([0, 1, 0, 1]), [4])
    apart = redundant(centres, np.array([0, 10, 20, 30]), np.array([0, 1, 0, 1]), [4])
    own = redundant(centres, np.array([0, 1, 20, 21]), np.array([0, 0, 1, 1]), [4])
    assert same.all()
    assert not apart.any()
    assert not own.any(), "a client's own neighbours are not another client's"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_labels_do_not_overlap_and_stay_inside(wanted):
    placed = spread(wanted, gap=17, low=0, high=100)
    ordered = sorted(placed)
    assert all(b - a >= 17 - 1e-9 for a, b in itertools.pairwise(ordered))
    assert ordered[-1] <= 100 + 1e-9
    assert ordered[0] >= -1e-9 or len(wanted) * 17 > 100
    assert [placed[i] for i in np.argsort(wanted, kind="stable")] == ordered


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_points_lie_inside_the_axes(values):
    series = Series("a", [(10.0 * (i + 1), value) for i, value in enumerate(values)], ["" for _ in values])
    chart = line_chart([series], x_title="", y_title="", description="")
    assert all(chart.left - 1e-6 <= dot.x <= chart.right + 1e-6 for dot in series.dots)
    assert all(chart.top - 1e-6 <= dot.y <= chart.bottom + 1e-6 for dot in series.dots)
    assert 2 <= len(chart.y_ticks) <= 8


@pytest.mark.parametrize("count", [1, 7, 30])
def test_the_terminal_table_fits_eighty_columns(count):
    budgets = [10 * (number + 1) for number in range(count)]
    results = [
        {"method": method, "coordination": kind, "budget": budget, "accuracy": 1.0}
        for method in ("maxherding", "random")
        for kind in ("central", "per-client")
        for budget in budgets
    ]
    text = io.StringIO()
    print_results(results, Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert all(len(line.rstrip()) <= 80 for line in lines)
    head = next(line.split() for line in lines if line.startswith("labels"))
    assert head[-3:] == ["mean", "gap", "%"]
    assert {str(budgets[0]), str(budgets[-1])} <= set(head)
    assert "…" not in text.getvalue()
