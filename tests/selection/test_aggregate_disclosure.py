"""What answers say of single rows: little, of whichever method, client and number of selections."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from aggregate_choice import choose_with, parts_of
from cofal.selection.aggregate import covering
from cofal.selection.aggregate.cells import BLUR, canonical, told_sums
from cofal.selection.aggregate.covering import by_chance
from cofal.selection.aggregate.coverstate import State
from cofal.selection.aggregate.exchange import OFTEN, Consortium, Holder, real
from cofal.selection.aggregate.grazing import _nearest
from cofal.selection.aggregate.herding import NONE
from cofal.selection.aggregate.kmeans import _told_clusters
from cofal.selection.aggregate.maxherding import MAXHERDING
from cofal.selection.aggregate.probcover import PROBCOVER
from cofal.selection.aggregate.regions import Rows
from cofal.selection.aggregate.typiclust import TYPICLUST

METHODS = {"probcover": PROBCOVER, "typiclust": TYPICLUST, "maxherding": MAXHERDING}


def transcript(method, parts, budgets, labeled=None, **params):
    """Of each client: (holder, kind, told arrays, numbers, answer) of each question; and what it picked."""
    told = defaultdict(list)

    def answer(holder, kind, arrays, numbers):
        found = METHODS[method].answer(holder, kind, arrays, numbers)
        client = next(k for k, rows in enumerate(parts) if rows is holder.rows)
        told[client].append((holder, kind, dict(arrays), dict(numbers), found))
        return found

    picks, _ = choose_with(METHODS[method], parts, budgets, labeled, answer=answer, **params)
    return told, picks


def single(found):
    """The distances and cosines of free samples that an answer holds."""
    values = [found[name] for name in ("distances", "free") if name in found]
    return np.concatenate([each[np.isfinite(each) & (each > NONE)].ravel() for each in values]) if values else []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 40), least=st.integers(2, 9))
def test_sums_are_told_beside_themselves_by_nearly_a_row(seed, d, least):
    (rows,) = parts_of(seed, (200,), d=d)
    holder = Holder(rows * np.linspace(0.1, 1, d, dtype=np.float32), np.zeros(200, bool))
    groups = np.random.default_rng(seed).random((50, 200)) < 0.1
    sums = groups.astype(np.float64) @ holder.rows
    told = told_sums(holder, sums, least)
    steps, spread = holder.cache["steps"], holder.rows.std(0)
    assert (np.log2(steps / BLUR) % 1 == 0).all()  # no exact number of the rows
    assert ((steps / BLUR > 0.7 * spread) & (steps / BLUR < 1.42 * spread)).all()
    np.testing.assert_array_equal(told, told_sums(holder, told, least))
    off = np.sqrt((((told - sums) / spread) ** 2).mean())
    assert 0.5 < off < 1.3
    np.testing.assert_array_equal(told_sums(holder, sums, 1), sums)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize(("size", "labeled"), [(1, 0), (4, 0), (60, 56)])
def test_of_fewer_free_samples_than_may_be_told_of_no_distance_is_told(method, size, labeled):
    """A few coarse distances to many centres would be enough to work out where the sample is."""
    parts = parts_of(3, (size, 200, 200))
    had = [np.arange(labeled), np.arange(0), np.arange(0)]
    told, picks = transcript(method, parts, (2 if size > 1 else 1, 20, 20), had, min_region=5)
    assert all(len(single(each[4])) == 0 for each in told[0])
    assert sum(client == 0 for client, _ in picks) == min(size, 2)
    assert any(len(single(each[4])) for each in told[1])


@pytest.mark.parametrize("method", list(METHODS))
def test_of_few_free_samples_few_distances_are_told(method):
    told, _ = transcript(method, parts_of(4, (6, 300, 300)), (0, 50, 50), min_region=5)
    values = sum(len(single(each[4])) for each in told[0])
    assert (
        0 < values <= (2 if method == "probcover" else 1) * 6 * OFTEN
    )  # of a centre, until it is known whose pick it is


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), m=st.integers(1, 12), n=st.integers(1, 12), depth=st.integers(1, 4))
def test_cosines_of_a_sample_are_told_to_its_nearest_candidates_alone(seed, m, n, depth):
    cosines = np.random.default_rng(seed).permutation(m * n).reshape(m, n).astype(np.float32) / (m * n)
    plain = -np.sort(-cosines, axis=1)[:, :depth]
    np.testing.assert_array_equal(_nearest(cosines, depth, m), plain)
    told = _nearest(cosines, depth, 2)
    for row, candidates in zip(told, cosines):
        known = row[row > NONE]
        assert np.isin(known, candidates).all()
        assert (np.diff(known) < 0).all()
    for column in cosines.T:
        heard = np.sort(column[np.isin(column, told)])
        assert len(heard) <= 2


def digits():
    x = load_digits().data
    x = x - x.mean(0)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def nested(method, parts, totals, **params):
    """A selection for each of `totals`, the picks so far being labelled: everything that client 0 told."""
    labeled, found = [np.empty(0, np.int64) for _ in parts], []
    for total in totals:
        budgets = [total // len(parts) - len(had) for had in labeled]
        told, picks = transcript(method, parts, budgets, labeled, min_region=5, **params)
        found += told[0]
        labeled = [
            np.array([*had, *(position for client, position in picks if client == me)], np.int64)
            for me, had in enumerate(labeled)
        ]
    return found


def test_sums_of_several_selections_do_not_tell_the_row_in_which_they_differ():
    """Groups differ from one selection to the next; two that differ by one row are found by whoever is told which."""
    x = digits()
    parts = np.array_split(x[:1200], 4)
    sums = {}
    for holder, kind, arrays, numbers, answer in nested("typiclust", parts, (12, 20, 40, 60, 80, 100)):
        if kind == "sums":
            clusters = _told_clusters(holder, arrays["centers"], 5)
            told = real(answer["sums"], int(numbers["bits"]))
            sums |= {frozenset(np.flatnonzero(clusters == c)): told[c] for c in np.unique(clusters[clusters >= 0])}
    rows = canonical(holder)[0]
    found, exact = [], []
    for one in sums:
        for other in sums:
            if other < one and len(one) == len(other) + 1:
                (row,) = one - other
                difference = sums[one] - sums[other]
                found.append(np.linalg.norm(difference - rows[row]))
                exact.append(
                    np.linalg.norm(np.delete(x, np.flatnonzero((x == rows[row]).all(1)), 0) - rows[row], axis=1).min()
                )
    assert len(found) > 10
    assert np.median(found) > 1.2 * np.median(exact)  # another digit is a better guess
    assert min(found) > 0.4


def test_regions_of_several_selections_do_not_tell_the_row_in_which_they_differ(monkeypatch):
    """A row of one region more lies in the plane of the two centroids, were they told as they are."""
    told, centroids = {}, covering.centroids

    def noting(rows, regions, *arguments):
        found = centroids(rows, regions, *arguments)
        for (members, _), center in zip(regions, found[0].astype(np.float64)):
            told[rows.n, frozenset(members.tolist())] = center, rows.x
        return found

    monkeypatch.setattr(covering, "centroids", noting)
    x = digits()
    nested("probcover", np.split(x[:1200], [297, 595, 896]), (12, 20, 40, 60, 80, 100), delta=0.7)
    found, exact = [], []
    for (n, one), (center, rows) in told.items():
        for (size, other), (before, _) in told.items():
            if n == size and other < one and len(one) == len(other) + 1:
                (row,) = one - other
                plane, _ = np.linalg.qr(np.stack([before, center], axis=1))
                found.append(np.linalg.norm(rows[row] @ plane))  # the cosine of the likest row in the plane
                exact.append(np.sort(x[(x != rows[row]).any(1)] @ rows[row])[-1])
    assert len(found) > 5
    assert np.median(found) < np.median(exact)  # another digit is a better guess
    assert max(found) < 0.95


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), step=st.integers(2, 9), count=st.integers(0, 60))
def test_counts_in_steps_by_chance_are_right_in_the_mean_and_always_the_same(seed, step, count):
    draws = np.random.default_rng(seed).integers(0, 2**64, 4000, dtype=np.uint64)
    told = by_chance(np.full(4000, count, np.int32), step, draws)
    if count < step:
        assert not told.any()
    else:
        assert set(told.tolist()) <= {count - count % step, count - count % step + step}
        assert abs(told.mean() - count) < 5 * step / 2 / np.sqrt(4000)
    np.testing.assert_array_equal(told, by_chance(np.full(4000, count, np.int32), step, draws))


def sides_told(least):
    """How well a lying server tells on which side of 400 balls a row is, from one question of many clever balls.

    Two balls that differ by one row: in whatever other ball that row is, one has more samples in common than the other.
    Of all the pairs of balls that differ so, the mean share of the balls around the row, and of those elsewhere, that
    are told rightly, where a coin gives a half.
    """
    (rows,) = parts_of(1, (300,), d=8, spread=1.0)
    holder = Holder(rows, np.zeros(300, bool))
    rng = np.random.default_rng(2)
    balls = np.repeat(rng.normal(size=(200, 8)), 3, axis=0) + 0.02 * rng.normal(size=(600, 8))
    balls = (balls / np.linalg.norm(balls, axis=1, keepdims=True)).astype(np.float16)
    state = State(Consortium([300], [0], [5], 8), 1.2, least, exact=False)
    arrays = {
        "prefix": np.zeros((1, 2), np.int32), "radii": np.array([1.2]), "tops": np.array([9], np.int32),
        "balls": balls, "sizes": np.zeros(600, np.uint8),
    }  # fmt: skip
    question = state.question("count", [{"wanted": np.zeros(1, np.int32)}], summed=True, **arrays)
    told = PROBCOVER.answer(holder, "count", question.told(0), question.numbers)
    common = np.zeros((600, 600), np.int64)
    common[np.triu_indices(600, 1)] = told["overlaps"]
    common += common.T
    inside = Rows(holder).inside(balls, np.zeros(600, np.uint8), 1.2)
    right = []
    for one in range(0, 600, 3):
        for a, b in ((one, one + 1), (one, one + 2), (one + 1, one + 2)):
            (differ,) = np.nonzero(inside[:, a] != inside[:, b])
            if len(differ) == 1 and told["gains"][a] - told["gains"][b] in (1, -1):
                if told["gains"][a] < told["gains"][b]:
                    a, b = b, a
                others = np.delete(np.arange(600), [a, b])
                more, within = (common[a] - common[b] > 0)[others], inside[differ[0]][others]
                right.append((more[within].mean() + 1 - more[~within].mean()) / 2)
    assert len(right) > 10
    return float(np.mean(right))


def test_what_balls_have_in_common_does_not_tell_where_a_row_is():
    assert sides_told(1) == 1.0
    assert sides_told(5) < 0.65


@pytest.mark.parametrize("size", [6, 12, 25, 60])
def test_distances_in_clusters_are_no_list_of_the_samples(size):
    """Where there are more clusters than a client has samples, each of them is in a cluster of its own."""
    parts = parts_of(4, (500, 500, size), d=16, groups=200, spread=0.2)
    told, _ = transcript("typiclust", parts, (40, 40, 4))
    (nearest,) = [found["distances"] for _, kind, _, _, found in told[2] if kind == "nearest"]
    assert 0 < np.isfinite(nearest).sum() <= size // 2
    everything, _ = transcript("typiclust", parts, (40, 40, 4), min_region=1)
    (all_told,) = [found["distances"] for _, kind, _, _, found in everything[2] if kind == "nearest"]
    assert np.isfinite(all_told).any(axis=1).sum() > size // 2


def test_cells_of_maxherding_are_the_same_in_every_selection():
    cells = [
        told[4]["means"]
        for told in nested("maxherding", np.array_split(digits()[:600], 4), (8, 20, 40))
        if told[1] == "cells"
    ]
    assert len(cells) == 3
    assert all(np.array_equal(each, cells[0]) for each in cells)


@pytest.mark.parametrize("sharpness", [2.0, 100.0, 1e6])
@pytest.mark.parametrize("offered", [1.0, 50.0])
def test_no_gain_is_nearly_that_of_one_row(sharpness, offered):
    """Through a narrow kernel it would be the exact cosine of the row nearest to the candidate."""
    rows = digits()[:300]
    candidates = digits()[300:600].astype(np.float16)
    told = {"candidates": candidates, "offered": np.full(300, offered, np.float32)}
    told |= {"centers": np.empty(0, np.int16), "cosines": np.empty(0, np.float32)}
    numbers = {"bits": 16, "min_region": 5, "sharpness": sharpness}
    gains = real(MAXHERDING.answer(Holder(rows, np.zeros(300, bool)), "gains", told, numbers)["gains"], 16)
    cosines = rows.astype(np.float64) @ candidates.T.astype(np.float64)
    weights = np.minimum(np.exp(np.minimum(sharpness * (offered * cosines - 1), 1)), 1)
    most = weights.max(0) / np.maximum(weights.sum(0), 1e-300)
    assert (gains[most > 0.5] == 0).all()
    assert (gains > 0).any() or sharpness > 2
