"""Federated k-means: against pooled k-means from the same seeds, silence about small clusters, empty clusters."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from aggregate_choice import parts_of
from cofal.selection.aggregate import kmeans
from cofal.selection.aggregate.cells import canonical, cells
from cofal.selection.aggregate.exchange import Consortium, Holder, real, run, total
from cofal.selection.aggregate.kmeans import _told_clusters, answer_kmeans, federated_kmeans, seeds


def federated(parts, k, *, min_region, iterations, seed=0):
    """The clusters found, and each round trip's centres and totals."""
    holders = [Holder(x, np.zeros(len(x), bool)) for x in parts]
    known = Consortium([len(x) for x in parts], [0] * len(parts), [1] * len(parts), parts[0].shape[1])
    talk = federated_kmeans(known, k, np.random.default_rng(seed), min_region=min_region, iterations=iterations)
    trips, sent = [], None
    while True:
        try:
            question = talk.send(sent)
        except StopIteration as done:
            return done.value, trips
        answers = [answer_kmeans(holder, question.kind, question.arrays, question.numbers) for holder in holders]
        sent = total(answers) if question.summed else answers
        trips.append((question, answers, sent))


def lloyd(x, centers, updates):
    centers = centers.astype(np.float64)
    for _ in range(updates):
        labels = ((x[:, None] - centers) ** 2).sum(2).argmin(1)
        centers = np.array([x[labels == c].mean(0) if (labels == c).any() else centers[c] for c in range(len(centers))])
    return centers


def inertia(x, centers):
    return ((x[:, None].astype(np.float64) - centers) ** 2).sum(2).min(1).sum()


@pytest.mark.parametrize("seed", range(4))
def test_without_silence_it_is_lloyds_algorithm_on_the_pooled_rows(seed):
    parts = parts_of(seed, (150, 90, 60))
    found, trips = federated(parts, 10, min_region=1, iterations=12)
    sums = [trip for trip in trips if trip[0].kind == "sums"]
    assert all((trip[2]["counts"] > 0).all() for trip in sums)  # the plain Lloyd below knows no empty clusters
    expected = lloyd(np.concatenate(parts).astype(np.float64), sums[0][0].arrays["centers"][0], len(sums))
    np.testing.assert_allclose(found.centers, expected, atol=1e-5)


@pytest.mark.parametrize("min_region", [1, 5])
def test_the_objective_is_that_of_pooled_kmeans_from_the_same_seeds(min_region):
    for seed in range(5):
        parts = parts_of(seed, (300, 300, 300, 300))
        found, trips = federated(parts, 12, min_region=min_region, iterations=15, seed=seed)
        pooled = np.concatenate(parts)
        start = next(trip[0].arrays["centers"][0] for trip in trips if trip[0].kind == "sums")
        converged = inertia(pooled, lloyd(pooled.astype(np.float64), start, 60))
        assert inertia(pooled, found.centers) <= 1.01 * converged


def test_small_clusters_of_a_client_leave_no_trace():
    parts = parts_of(3, (40, 33, 3))
    _, trips = federated(parts, 12, min_region=5, iterations=6)
    silent = 0
    for question, answers, _ in trips:
        for answer in answers:
            counts = answer["counts"]
            if question.kind == "cells":
                assert (counts >= 5).all()
            else:
                assert ((counts == 0) | (counts >= 5)).all()
                assert not answer["sums"][counts == 0].any()
                silent += int((counts == 0).sum())
    assert silent > 0
    assert len(trips[0][1][2]["means"]) == 0  # three rows are no cell


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(0, 60),
    most=st.integers(0, 20),
    min_region=st.integers(1, 9),
    fine=st.booleans(),
)
def test_cells_hold_every_row_and_none_is_small(seed, size, most, min_region, fine):
    rows = parts_of(seed, (size,), d=3)[0]
    rows = np.concatenate([rows, rows[: size // 2]])  # copies
    holder = Holder(rows, np.zeros(len(rows), bool))
    means, counts = cells(holder, most, min_region, fine)
    assert len(means) == len(counts) <= most
    if len(rows) >= min_region and most:
        assert counts.sum() == len(rows)
        assert counts.min() >= min_region
        off = (means * counts[:, None]).sum(0) - rows.astype(np.float64).sum(0)
        assert (np.abs(off) <= len(means) * holder.cache.get("steps", 0) / 2 + 1e-5).all()
    else:
        assert len(counts) == 0


def test_where_cells_are_scarce_finer_ones_are_asked_for():
    parts = parts_of(2, (200, 200), groups=30, spread=0.3)
    few, many = (federated(parts, k, min_region=5, iterations=2)[1][0] for k in (4, 30))
    assert (few[0].numbers["fine"], many[0].numbers["fine"]) == (0, 1)
    for rows in parts:
        holder = Holder(rows, np.zeros(len(rows), bool))
        plain, fine = (len(cells(holder, 300, 5, finer)[1]) for finer in (False, True))
        assert fine > 1.2 * plain


def told_sets(holder, centers, least):
    """The rows of every cluster that a client tells of, in each iteration, as sets."""
    found = []
    for end in range(1, len(centers) + 1):
        clusters = _told_clusters(holder, centers[:end], least)
        found += [frozenset(np.flatnonzero(clusters == c).tolist()) for c in range(centers.shape[1])]
    return {each for each in found if each}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(0, 90), k=st.integers(1, 8), least=st.integers(1, 6))
def test_all_sums_ever_told_are_of_whole_groups_of_one_partition(seed, size, k, least):
    """So no sum, difference or other combination of what was told is about fewer than `least` rows."""
    holder = Holder(parts_of(seed, (size,), d=3)[0], np.zeros(size, bool))
    rows = canonical(holder)[0]
    centers = np.random.default_rng(seed).normal(size=(6, k, 3)).astype(np.float32)
    told = told_sets(holder, centers, least)
    belongs = {}
    for row in range(size):
        belongs.setdefault(frozenset(each for each in told if row in each), set()).add(row)
    assert all(len(group) >= least for sets, group in belongs.items() if sets)
    if least == 1:
        last = ((rows[:, None] - centers[-1]) ** 2).sum(2).argmin(1)
        assert {frozenset(np.flatnonzero(last == c).tolist()) for c in range(k)} - {frozenset()} <= told


def test_no_difference_of_two_answers_is_a_row(monkeypatch):
    """Of a whole selection on digits; where rows move freely from cluster to cluster, dozens are given away so."""

    def freely(groups, homes, labels, least):
        counts = np.bincount(labels)
        return np.where(counts[labels] >= least, labels, -1), np.arange(len(counts))

    x, _ = load_digits(return_X_y=True)
    x = x - x.mean(0)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)[:1200]

    def given_away():
        parts = np.split(x, 4)
        _, trips = federated(parts, 60, min_region=5, iterations=15)
        asked = [trip for trip in trips if trip[0].kind == "sums"]
        assert len(asked) > 2
        rows = set()
        for (question, before, _), (_, after, _) in pairwise(asked):
            for part, one, two in zip(parts, before, after):
                moved = real(two["sums"].astype(np.int64) - one["sums"], int(question.numbers["bits"]))
                for change in moved[np.abs(np.linalg.norm(moved, axis=1) - 1) < 0.01]:
                    near = np.abs(part - np.sign(change @ part[np.abs(part @ change).argmax()]) * change).max(1)
                    rows |= {tuple(part[row]) for row in np.flatnonzero(near < 0.01)}
        return len(rows)

    monkeypatch.setattr(kmeans, "told_sums", lambda holder, sums, least: sums)
    assert given_away() == 0
    monkeypatch.setattr(kmeans, "regroup", freely)
    assert given_away() > 10


def test_whole_cells_taken_off_a_cluster_leave_no_row():
    """Means of cells are told in steps: the rounding of many rows hides the few that a cluster has besides."""
    (rows,) = parts_of(6, (300,), d=16, spread=0.3)
    _, trips = federated([rows, rows[:50], rows[:50]], 12, min_region=5, iterations=2)
    told, summed = trips[0][1][0], trips[1][1][0]
    means, counts = told["means"].astype(np.float64), told["counts"]
    homes = ((means[:, None] - trips[1][0].arrays["centers"][0]) ** 2).sum(2).argmin(1)
    bits = int(trips[1][0].numbers["bits"])
    for cluster in range(12):
        cells_in = np.flatnonzero(homes == cluster)
        rest = real(summed["sums"][cluster], bits) - (counts[cells_in, None] * means[cells_in]).sum(0)
        if abs(int(summed["counts"][cluster] - counts[cells_in].sum())) == 1:
            assert min(np.linalg.norm(rows - rest, axis=1).min(), np.linalg.norm(rows + rest, axis=1).min()) > 0.3


def test_an_empty_cluster_is_put_where_the_centres_serve_worst():
    """Two clients keep silent about everything near one seed: the next question has moved it."""
    parts = parts_of(1, (60, 60), groups=5, spread=0.1)
    _, trips = federated(parts, 14, min_region=8, iterations=5)
    asked = [trip for trip in trips if trip[0].kind == "sums"]
    empty = np.flatnonzero(asked[0][2]["counts"] == 0)
    assert len(empty) > 0
    before, after = asked[0][0].arrays["centers"][-1][empty], asked[1][0].arrays["centers"][-1][empty]
    assert (before != after).any()
    assert all(np.isfinite(trip[0].arrays["centers"]).all() for trip in asked)


def test_seeds_exist_however_many_cells_are_copies():
    cells_given = np.repeat(np.eye(3), [4, 1, 1], axis=0)
    for k in range(1, 7):
        found = seeds(cells_given, np.ones(6), k, np.random.default_rng(0))
        assert found.shape == (k, 3)
        assert np.isfinite(found).all()


@pytest.mark.parametrize(("merged", "asked", "share"), [(8192, (10, 40, 100), 0.99), (150, (5, 10), 1.02)])
def test_seeds_serve_the_cells_better_than_those_drawn_by_kmeans_plus_plus(merged, asked, share, monkeypatch):
    """The mean of ten draws, k-means gone on from each; nearly as well where only half of the cells are merged."""
    monkeypatch.setattr(kmeans, "_MERGED", merged)
    x, _ = load_digits(return_X_y=True)
    holder = Holder((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), np.zeros(len(x), bool))
    means, counts = cells(holder, 300, 5, fine=True)
    for k in asked:
        drawn = [KMeans(k, n_init=1, random_state=seed).fit(means, sample_weight=counts).inertia_ for seed in range(10)]
        found = seeds(means, counts, k, np.random.default_rng(0))
        assert len(np.unique(found, axis=0)) == k
        assert counts @ ((means[:, None] - found) ** 2).sum(2).min(1) < share * np.mean(drawn)


def test_a_cluster_of_which_noise_alone_tells_is_not_put_at_the_origin():
    """Counts get noise, sums do not: a count without rows behind it is no reason to believe in a cluster."""
    parts = parts_of(1, (60, 60), groups=5, spread=0.1)
    holders = [Holder(x, np.zeros(60, bool), noise=lambda counts: {n: a + 7 for n, a in counts.items()}) for x in parts]
    talk = federated_kmeans(
        Consortium([60, 60], [0, 0], [1, 1], 8), 14, np.random.default_rng(0), min_region=8, iterations=5
    )
    found = run(talk, holders, answer_kmeans)[0]
    assert np.linalg.norm(found.centers, axis=1).min() > 0.3
