"""What every division of a set among clients must hold: each row once, equal sizes, the wanted label distributions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from cofal.data.partition import client_sizes, fit_margins, integer_table, log_dirichlet, partition
from cofal.errors import UserError

labels_and_clients = st.lists(st.integers(-1, 12), min_size=1, max_size=200).flatmap(
    lambda labels: st.tuples(st.just(np.array(labels)), st.integers(1, len(labels)))
)
seeds = st.integers(0, 2**32)


def check_is_partition(parts: list[np.ndarray], samples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    assert all(np.all(np.diff(part) > 0) for part in parts)


def check_equal_sizes(parts: list[np.ndarray]) -> None:
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(labels_and_clients, seeds)
def test_iid_spreads_every_class_and_every_row_evenly(case, seed):
    labels, clients = case
    parts = partition(labels, clients, split="iid", rng=np.random.default_rng(seed))
    check_is_partition(parts, len(labels))
    check_equal_sizes(parts)
    for value in np.unique(labels):
        counts = [int((labels[part] == value).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1


@given(labels_and_clients, seeds, st.sampled_from([1e-310, 1e-6, 0.01, 0.1, 1.0, 100.0, 1e9]))
@settings(deadline=None)
def test_dirichlet_gives_each_row_to_one_client_in_equal_sizes(case, seed, alpha):
    labels, clients = case
    parts = partition(labels, clients, split="dirichlet", alpha=alpha, rng=np.random.default_rng(seed))
    assert len(parts) == clients
    check_is_partition(parts, len(labels))
    check_equal_sizes(parts)


@given(labels_and_clients, seeds, st.sampled_from(["iid", "dirichlet"]))
@settings(deadline=None, max_examples=40)
def test_same_seed_gives_the_same_split(case, seed, split):
    labels, clients = case
    one, two = (partition(labels, clients, split=split, alpha=0.3, rng=np.random.default_rng(seed)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two))


def test_another_seed_gives_another_split():
    labels = np.repeat(np.arange(10), 50)
    for split in ("iid", "dirichlet"):
        one, two = (partition(labels, 4, split=split, alpha=1.0, rng=np.random.default_rng(s)) for s in (0, 1))
        assert not np.array_equal(one[0], two[0])


def skew(labels: np.ndarray, parts: list[np.ndarray]) -> float:
    """Mean total-variation distance between the clients' label distributions and the whole set's."""
    classes = labels.max() + 1
    whole = np.bincount(labels, minlength=classes) / len(labels)
    shares = [np.bincount(labels[part], minlength=classes) / len(part) for part in parts]
    return float(np.mean([np.abs(share - whole).sum() / 2 for share in shares]))


@pytest.mark.parametrize(("clients", "classes"), [(2, 10), (4, 10), (30, 5)])
def test_smaller_alpha_means_more_different_clients(clients, classes):
    labels = np.repeat(np.arange(classes), 300)
    means = []
    for alpha in (0.01, 0.1, 1.0, 10.0, 1000.0):
        splits = (
            partition(labels, clients, split="dirichlet", alpha=alpha, rng=np.random.default_rng(s)) for s in range(12)
        )
        means.append(np.mean([skew(labels, parts) for parts in splits]))
    assert all(larger > smaller for larger, smaller in itertools.pairwise(means)), means
    assert means[-1] < 0.03


def test_tiny_alpha_gives_nearly_one_class_to_each_client_where_sizes_allow():
    # ten classes, ten clients: a client can hold exactly one class, and with alpha -> 0 should come near that
    labels = np.repeat(np.arange(10), 100)
    parts = partition(labels, 10, split="dirichlet", alpha=1e-4, rng=np.random.default_rng(3))
    purity = [np.bincount(labels[part]).max() / len(part) for part in parts]
    assert np.mean(purity) > 0.95


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.005, 50), seeds)
@settings(deadline=None)
def test_logarithmic_dirichlet_draws_are_distributions(clients, classes, alpha, seed):
    log_p = log_dirichlet(alpha, clients, classes, np.random.default_rng(seed))
    assert np.all(np.isfinite(log_p))
    assert np.allclose(np.exp(log_p).sum(axis=1), 1)


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_logarithmic_dirichlet_draws_have_the_moments_of_the_dirichlet(alpha):
    classes = 5
    p = np.exp(log_dirichlet(alpha, 40_000, classes, np.random.default_rng(1)))
    mean = 1 / classes
    variance = mean * (1 - mean) / (classes * alpha + 1)
    assert np.allclose(p.mean(axis=0), mean, atol=0.01)
    assert np.allclose(p.var(axis=0), variance, rtol=0.05)


def naive_fit(p: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Textbook iterative proportional fitting, as the yardstick for moderate p."""
    table = p.copy()
    for _ in range(3_000):
        table *= (columns / table.sum(axis=0))[None, :]
        table *= (rows / table.sum(axis=1))[:, None]
    return table


@given(st.integers(2, 5), st.integers(2, 5), seeds)
@settings(deadline=None, max_examples=15)
def test_fit_equals_textbook_fitting(clients, classes, seed):
    rng = np.random.default_rng(seed)
    log_p = log_dirichlet(1.0, clients, classes, rng)
    columns = rng.integers(50, 150, classes)
    rows = client_sizes(int(columns.sum()), clients)
    fitted = fit_margins(log_p, rows, columns, tolerance=1e-6)
    assert np.allclose(fitted, naive_fit(np.exp(log_p), rows, columns), atol=1e-2)


@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from([0.01, 0.1, 1.0, 50.0]), seeds)
@settings(deadline=None)
def test_rounding_keeps_both_margins_and_moves_no_cell_far(clients, classes, alpha, seed):
    rng = np.random.default_rng(seed)
    columns = rng.integers(1, 300, classes)
    columns[0] += clients  # enough for one each
    rows = client_sizes(int(columns.sum()), clients)
    table = fit_margins(log_dirichlet(alpha, clients, classes, rng), rows, columns)
    whole = integer_table(table, columns)
    assert whole.min() >= 0
    assert np.array_equal(whole.sum(axis=0), columns)
    assert np.array_equal(whole.sum(axis=1), rows)
    assert np.abs(whole - table).max() < 0.02 * columns.sum() + 5


def least_distance(p: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> float:
    """Mean total variation from p of the best fractional table with these margins, by linear programming."""
    clients, classes = p.shape
    cells = clients * classes
    excess = np.hstack([np.eye(cells), -np.eye(cells)])  # T - e <= rows p, e >= 0: the sum of e is the total variation
    margins = [np.kron(np.eye(clients), np.ones(classes)), np.kron(np.ones(clients), np.eye(classes))]
    equal = np.hstack([np.vstack(margins), np.zeros((clients + classes, cells))])
    cost = np.r_[np.zeros(cells), np.repeat(1 / rows, classes)]
    solved = linprog(cost, excess, (rows[:, None] * p).ravel(), equal, np.r_[rows, columns])
    return float(solved.fun / clients)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0])
@pytest.mark.parametrize(("clients", "classes"), [(2, 10), (4, 10), (20, 10)])
def test_clients_stay_near_their_drawn_distributions(alpha, clients, classes):
    """Equal sizes and full use of every class force clients away from p; ours go hardly further than they must."""
    columns = np.full(classes, 1000)
    rows = client_sizes(int(columns.sum()), clients)
    ours, best = [], []
    for seed in range(10):
        log_p = log_dirichlet(alpha, clients, classes, np.random.default_rng(seed))
        whole = integer_table(fit_margins(log_p, rows, columns), columns)
        ours.append(np.abs(whole / rows[:, None] - np.exp(log_p)).sum(axis=1).mean() / 2)
        best.append(least_distance(np.exp(log_p), rows, columns))
    assert np.mean(ours) <= np.mean(best) + 0.08, (np.mean(ours), np.mean(best))


def test_by_column_makes_one_client_of_each_value_in_sorted_order():
    groups = ["north", "south", "north", "east"]
    for clients in (3, None):
        parts = partition(np.zeros(4, int), clients, split="by-column", groups=groups, rng=np.random.default_rng(0))
        assert [part.tolist() for part in parts] == [[3], [0, 2], [1]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clients": 0, "split": "iid"}, "clients = 0"),
        ({"clients": -2, "split": "iid"}, "clients = -2"),
        ({"clients": 6, "split": "iid"}, "only 5 images"),
        ({"clients": 6, "split": "dirichlet", "alpha": 1.0}, "only 5 images"),
        ({"clients": 2, "split": "dirichlet", "alpha": 0.0}, "alpha = 0.0"),
        ({"clients": 2, "split": "dirichlet", "alpha": -1.0}, "alpha = -1.0"),
        ({"clients": 2, "split": "dirichlet", "alpha": float("nan")}, "alpha = nan"),
        ({"clients": 2, "split": "dirichlet", "alpha": None}, "alpha = None"),
        ({"clients": 2, "split": "by-column"}, "data.column"),
        ({"clients": 2, "split": "by-column", "groups": ["a", "b", "c", "a", "b"]}, "set clients = 3"),
        ({"clients": 2, "split": "by-column", "groups": ["a"]}, "1 values for 5 images"),
        ({"clients": 2, "split": "by-hand"}, "by-hand"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(arguments, words):
    with pytest.raises(UserError) as caught:
        partition(np.zeros(5, int), rng=np.random.default_rng(0), **arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
