"""TypiClust against a naive oracle that shares the clustering, and the properties every selector must have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.rng import generator
from cofal.selection import approx as approximation
from cofal.selection import typiclust as module
from cofal.selection.kmeans import kmeans
from cofal.selection.pool import Budgets, Pool
from cofal.selection.typiclust import typiclust


def oracle(pool: Pool, per_client: list[int], seed: int) -> list[int]:
    """The rules of TypiClust, word for word: everything recomputed at every pick, no shortcut."""
    budget = sum(per_client)
    k = min(int(pool.labeled.sum()) + budget, 500)
    labels = kmeans(pool, max(k, 1), generator(seed)).labels
    x = pool.tile(0, pool.n).double().numpy()
    picks: list[int] = []
    for _ in range(budget):
        feasible = [
            row
            for row in range(pool.n)
            if not pool.labeled[row]
            and row not in picks
            and sum(pool.owner[p] == pool.owner[row] for p in picks) < per_client[pool.owner[row]]
        ]
        clusters = {}
        for cluster in {int(labels[row]) for row in feasible}:
            members = np.flatnonzero(labels == cluster)
            labelled = sum(pool.labeled[row] or row in picks for row in members)
            clusters[cluster] = (len(members) <= 5, labelled, -len(members))
        first = min(clusters.values())
        best: tuple[float, int] | None = None
        for row in feasible:  # ascending, so that an equal later row does not displace an earlier one
            if clusters[int(labels[row])] != first:
                continue
            members = np.flatnonzero(labels == labels[row])
            others = members[members != row]
            squares = np.sort(((x[others] - x[row]) ** 2).sum(1))[: min(20, len(members) // 2)]
            spread = squares.mean() if len(squares) else 0.0
            if best is None or spread < best[0] - 1e-12:
                best = (spread, row)
        assert best is not None
        picks.append(best[1])
    return picks


@st.composite
def problems(draw):
    """Clients' rows (spread, clustered, duplicated or on a coarse grid), budgets (some zero) and labelled positions."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    d = draw(st.integers(2, 6))
    kind = draw(st.sampled_from(["spread", "clustered", "duplicates", "grid"]))
    sizes = draw(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0))
    centers = rng.normal(size=(4, d))
    arrays = []
    for size in sizes:
        x = rng.normal(size=(size, d))
        if kind == "clustered":
            x = centers[rng.integers(4, size=size)] + 0.1 * x
        elif kind == "duplicates":
            x = centers[rng.integers(4, size=size)]
        elif kind == "grid":
            x = rng.integers(0, 3, size=(size, d)) + 1.0
        arrays.append(x)
    labeled = [np.flatnonzero(rng.random(size) < draw(st.sampled_from([0, 0.3]))) for size in sizes]
    budgets = [int(rng.integers(0, min(size - len(given), 8) + 1)) for size, given in zip(sizes, labeled)]
    return Pool(arrays, labeled), budgets


@settings(max_examples=80, deadline=None)
@given(problem=problems(), seed=st.integers(0, 5))
def test_picks_equal_the_oracle_one_by_one(problem, seed):
    pool, per_client = problem
    picks = typiclust(pool, Budgets(per_client, pool), generator(seed)).rows
    assert picks.tolist() == oracle(pool, per_client, seed)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), approx=st.sampled_from([False, True, 8, 20]))
def test_budgets_are_met_exactly_without_repeats_or_labelled_rows(problem, approx):
    pool, per_client = problem
    picks = typiclust(pool, Budgets(per_client, pool), generator(0), approx=approx).rows
    assert np.bincount(pool.owner[picks], minlength=pool.clients).tolist() == per_client
    assert len(set(picks.tolist())) == len(picks)
    assert not pool.labeled[picks].any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 5))
def test_the_order_of_clients_and_samples_does_not_matter(seed, clients):
    rng = np.random.default_rng(seed)
    # Enough rows per cluster: two rows of a tiny cluster are each other's neighbours, a tie that goes by position.
    arrays = [rng.normal(size=(int(rng.integers(40, 80)), 4)) for _ in range(clients)]
    per_client = [int(rng.integers(0, 4)) for _ in range(clients)]
    inner = [rng.permutation(len(array)) for array in arrays]
    outer = rng.permutation(clients)

    def picked(given: list[np.ndarray], budgets: list[int]) -> set[tuple[float, ...]]:
        pool = Pool(given)
        rows = typiclust(pool, Budgets(budgets, pool), generator(seed)).rows
        return {tuple(row) for row in pool.rows(rows).tolist()}

    shuffled = [arrays[c][inner[c]] for c in outer]
    assert picked(arrays, per_client) == picked(shuffled, [per_client[c] for c in outer])


def test_one_pick_per_cluster_when_the_budget_fits():
    """Far-apart blobs, one label each: the first picks go one to a blob, from the largest blob down."""
    rng = np.random.default_rng(0)
    sizes = [40, 30, 20, 10]
    x = np.concatenate([np.eye(8)[i] + 0.02 * rng.normal(size=(size, 8)) for i, size in enumerate(sizes)])
    blob = np.repeat(np.arange(4), sizes)
    pool = Pool([x])
    assert blob[typiclust(pool, Budgets([4], pool), generator(0)).rows].tolist() == [0, 1, 2, 3]
    labelled = Pool([x], [np.flatnonzero(blob == 0)[:1]])  # k-means still finds the four blobs: 1 label + budget 3
    assert blob[typiclust(labelled, Budgets([3], labelled), generator(0)).rows].tolist() == [1, 2, 3]


def test_small_clusters_come_last(monkeypatch):
    monkeypatch.setattr(module, "MAX_CLUSTERS", 3)
    rng = np.random.default_rng(1)
    blob = np.repeat([0, 1, 2], [12, 5, 6])
    pool = Pool([np.eye(6)[blob] + 0.02 * rng.normal(size=(23, 6))])
    picked = blob[typiclust(pool, Budgets([23], pool), generator(0)).rows].tolist()
    assert picked[:4] == [0, 2, 0, 2]
    assert picked[18:] == [1] * 5


def test_pools_far_below_500_and_budgets_of_the_whole_pool():
    pool = Pool([np.random.default_rng(2).normal(size=(7, 3)), np.random.default_rng(3).normal(size=(1, 3))])
    picks = typiclust(pool, Budgets([7, 1], pool), generator(0)).rows
    assert sorted(picks.tolist()) == list(range(8))
    assert typiclust(pool, Budgets([0, 0], pool), generator(0)).rows.tolist() == []


def test_a_budget_above_500_visits_clusters_again(monkeypatch):
    monkeypatch.setattr(module, "MAX_CLUSTERS", 5)  # the rule, at a size the eye can check
    rng = np.random.default_rng(4)
    blob = np.repeat(np.arange(5), 12)
    pool = Pool([np.eye(5)[blob] + 0.02 * rng.normal(size=(60, 5))])
    picks = typiclust(pool, Budgets([23], pool), generator(0)).rows
    for done in range(5, 24, 5):  # equal clusters: nobody gets a further label before all have as many
        assert np.ptp(np.bincount(blob[picks[:done]], minlength=5)) == 0


def test_the_seed_reaches_the_clustering():
    pool = Pool([np.random.default_rng(5).normal(size=(300, 5))])
    first, again, other = (typiclust(pool, Budgets([20], pool), generator(seed)).rows.tolist() for seed in (0, 0, 1))
    assert first == again
    assert set(first) != set(other)


def test_threads_and_tiles_do_not_change_picks(monkeypatch):
    pool = Pool([np.random.default_rng(6).normal(size=(900, 12)), np.random.default_rng(7).normal(size=(300, 12))])
    budgets = Budgets([6, 6], pool)
    expected = typiclust(pool, budgets, generator(0)).rows.tolist()
    monkeypatch.setattr(module, "_ROWS", 32)
    monkeypatch.setattr(module, "_COLUMNS", 64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert typiclust(pool, budgets, generator(0)).rows.tolist() == expected
    finally:
        torch.set_num_threads(before)


def test_picks_on_digits_are_typical():
    """The mean distance of picks to their neighbours is well below that of random rows, and most classes are found."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x = digits.data - digits.data.mean(0)
    pool = Pool([x[i::4] for i in range(4)])
    labels = np.concatenate([digits.target[i::4] for i in range(4)])
    picks = typiclust(pool, Budgets([5] * 4, pool), generator(0)).rows
    unit = pool.tile(0, pool.n).numpy()
    nearest = np.sort(2 - 2 * unit @ unit.T, 1)[:, 1:21].mean(1)
    assert nearest[picks].mean() < 0.75 * nearest.mean()
    assert len(set(labels[picks])) >= 9


def test_nothing_asked_for_loses_nothing():
    pool = Pool([np.eye(20, dtype=np.float32)])
    assert typiclust(pool, Budgets([0], pool), generator(0), approx=8).coverage_loss == 0


def test_the_loss_of_an_approximation_is_measured():
    rng = np.random.default_rng(9)
    x = rng.normal(size=(30, 8))[rng.integers(30, size=6000)] + 0.2 * rng.normal(size=(6000, 8))
    pool = Pool([x])
    assert typiclust(pool, Budgets([30], pool), generator(0)).coverage_loss is None
    assert typiclust(pool, Budgets([30], pool), generator(0), approx=True).coverage_loss == 0  # all rows were looked at
    found = typiclust(pool, Budgets([30], pool), generator(0), approx=1000)
    assert found.coverage_loss is not None
    assert 0 < found.coverage_loss < 0.05


def test_a_loss_is_measured_on_rows_that_nothing_was_fitted_to(monkeypatch):
    """On rows without structure picks of one sample are worth those of another of the same size."""
    monkeypatch.setattr(approximation, "CHECK", 1500)
    pool = Pool([np.random.default_rng(10).normal(size=(6000, 16))])
    picked = typiclust(pool, Budgets([150], pool), generator(0), approx=1500)
    assert picked.coverage_loss is not None
    assert picked.coverage_loss < 0.01
