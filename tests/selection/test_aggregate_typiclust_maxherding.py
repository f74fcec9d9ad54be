"""FederatedTypiClust and FederatedMaxHerding: exact budgets, what leaves a client, purity of answers, and quality."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cofal
from aggregate_choice import choose_with, parts_of
from cofal.errors import UserError
from cofal.selection.aggregate.exchange import Holder
from cofal.selection.aggregate.herding import NONE, Herd
from cofal.selection.aggregate.kmeans import Clusters
from cofal.selection.aggregate.maxherding import MAXHERDING
from cofal.selection.aggregate.typiclust import TYPICLUST, _to_cells, assign, doubts

METHODS = {"typiclust": TYPICLUST, "maxherding": MAXHERDING}
both = pytest.mark.parametrize("name", list(METHODS))


def choose(name, parts, budgets, labeled=None, **params):
    return choose_with(METHODS[name], parts, budgets, labeled, **params)


@st.composite
def problems(draw):
    """Clients of any size, some empty or tiny, spread or copies, labelled samples, budgets up to all that is free."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(lambda sizes: sum(sizes) > 0))
    spread = draw(st.sampled_from([0.0, 0.3, 2.0]))  # 0: nothing but copies
    parts = parts_of(draw(st.integers(0, 10**6)), sizes, d=draw(st.integers(2, 6)), groups=3, spread=spread)
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    labeled = [np.flatnonzero(rng.random(size) < draw(st.sampled_from([0, 0.3]))) for size in sizes]
    share = draw(st.sampled_from([0.2, 1.0]))
    budgets = [int(rng.integers(0, int(share * (size - len(had))) + 1)) for size, had in zip(sizes, labeled)]
    return parts, budgets, labeled


@both
@settings(max_examples=30, deadline=None)
@given(problem=problems(), min_region=st.sampled_from([1, 5, 1000]))
def test_every_budget_is_met_exactly(name, problem, min_region):
    parts, budgets, labeled = problem
    order, _ = choose(name, parts, budgets, labeled, min_region=min_region)
    assert np.bincount([client for client, _ in order], minlength=len(parts)).tolist() == list(budgets)
    assert len(set(order)) == len(order)
    assert not any(position in labeled[client] for client, position in order)


@both
def test_no_answer_grows_with_the_samples_or_holds_one(name):
    shapes = []
    for size in (400, 800):
        parts, seen = parts_of(2, (size, size)), []

        def answer(holder, kind, arrays, numbers, seen=seen, size=size):
            found = METHODS[name].answer(holder, kind, arrays, numbers)
            for array in found.values():
                assert size not in array.shape, kind
                if array.ndim == 2 and array.shape[1] == holder.rows.shape[1] and array.dtype == np.float16:
                    means = array.astype(np.float32)
                    cosines = means / np.linalg.norm(means, axis=1, keepdims=True) @ holder.rows.T
                    assert np.linalg.norm(array[:, None].astype(np.float32) - holder.rows, axis=2).min() > 1e-3
                    assert cosines.max() < 1 - 1e-4
            seen.append((kind, {key: array.shape for key, array in found.items()}))
            return found

        choose(name, parts, (6, 6), answer=answer)
        shapes.append([shape for kind, shape in seen if kind in ("sums", "nearest", "settle")])
    if name == "typiclust":
        assert {str(shape) for shape in shapes[0]} == {str(shape) for shape in shapes[1]}


@both
def test_shuffling_a_clients_samples_changes_nothing(name):
    parts, labeled = parts_of(3, (120, 80, 60)), [np.array([3, 50]), np.array([], int), np.array([7])]
    inner = [np.random.default_rng(4).permutation(len(x)) for x in parts]
    order, _ = choose(name, parts, (9, 6, 4), labeled)
    moved = [np.flatnonzero(np.isin(turn, had)) for turn, had in zip(inner, labeled)]
    again, _ = choose(name, [x[turn] for x, turn in zip(parts, inner)], (9, 6, 4), moved)
    assert order == [(client, int(inner[client][position])) for client, position in again]


@both
def test_answers_need_no_memory(name):
    def fresh(holder, kind, arrays, numbers):
        other = Holder(holder.rows, holder.taken)
        found = METHODS[name].answer(other, kind, arrays, numbers)
        holder.picked = other.picked
        return found

    parts = parts_of(5, (150, 100))
    assert choose(name, parts, (14, 9), answer=fresh)[0] == choose(name, parts, (14, 9))[0]


@pytest.mark.parametrize("iterations", [2, 4, 15])
def test_typiclust_takes_iterations_plus_two_round_trips_at_most(iterations):
    _, cost = choose("typiclust", parts_of(6, (200, 200)), (15, 15), iterations=iterations)
    assert cost.rounds <= iterations + 2


@pytest.mark.parametrize("budget", [1, 3, 10, 80])
def test_round_trips_of_maxherding(budget):
    parts = parts_of(7, (500, 500), spread=1.0)
    most = 6 + 2 * budget // 20
    for shifts in (0, 3, most):
        assert choose("maxherding", parts, (budget, budget), shifts=shifts)[1].rounds <= 10 + 2 * budget / 20
    with pytest.raises(UserError, match=f"shifts = {most + 1} .*; use {most} or fewer"):
        choose("maxherding", parts, (budget, budget), shifts=most + 1)


def test_a_client_that_goes_on_alone_knows_what_others_cover():
    """Two clients hold the same three groups; the labels of one are known to the other as directions and cosines."""
    parts = parts_of(11, (90, 90), d=6, groups=3, spread=0.15)
    groups = [np.linalg.norm(x[:, None] - parts[0], axis=2).__lt__(0.8).argmax(1) for x in parts]
    first = np.unique(groups[0], return_index=True)[1]
    directions = parts[0][first[:2]]
    holder = Holder(parts[1], np.zeros(90, bool))
    told = {
        "candidates": directions.astype(np.float16),
        "centers": np.array([0, 1], np.int16),
        "cosines": np.array([0.95, 0.95], np.float32),
        "picks": np.empty(0, np.int16),
        "alone": np.array([1], np.int32),
    }
    MAXHERDING.answer(holder, "settle", told, {"lengthscale": 0.5, "seed": 0})
    assert groups[1][holder.picked[0]] not in groups[0][first[:2]]


def test_maxherding_keeps_silent_where_few_samples_would_speak():
    parts, silent = parts_of(8, (60, 60), spread=0.2), 0

    def answer(holder, kind, arrays, numbers):
        nonlocal silent
        found = MAXHERDING.answer(holder, kind, arrays, numbers)
        if kind == "cells":
            assert (found["counts"] >= 5).all()
        if kind == "shift":
            x, c = holder.rows.astype(np.float64), arrays["candidates"].astype(np.float64)
            weights = np.minimum(1, np.exp(numbers["sharpness"] * (x @ c.T - 1)))
            worth = weights.sum(0) ** 2 / (weights**2).sum(0)
            assert not found["sums"][worth < 4.99].any()
            silent += int((worth < 4.99).sum())
        return found

    choose("maxherding", parts, (5, 5), answer=answer, lengthscale=0.4)
    assert silent > 0


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 9))
def test_cells_of_copies_are_as_far_as_their_rows(seed, cells, neighbors):
    """Of cells that are copies of one row each, the distance to the nearest rows is known exactly."""
    rng = np.random.default_rng(seed)
    (rows, means), counts = parts_of(seed, (5, cells)), rng.integers(1, 6, size=cells)
    counts[0] += neighbors  # there are enough
    squares = np.sort(2 - 2 * rows.astype(np.float64) @ np.repeat(means, counts, axis=0).T, axis=1)
    found = _to_cells(rows, means, counts, neighbors)
    assert np.allclose(found, squares[:, :neighbors].mean(1), atol=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 9))
def test_the_doubt_is_the_logarithm_of_the_chance_to_be_of_a_cluster(seed, size, k):
    rows, centers = parts_of(seed, (size, k), d=5)
    sizes = np.random.default_rng(seed).integers(-3, 900, k)
    masses = np.maximum(1, sizes) * np.exp(8.0 * rows.astype(np.float64) @ centers.T.astype(np.float64))
    assert np.allclose(doubts(rows, centers, sizes), -np.log(masses / masses.sum(1, keepdims=True)) / 4, atol=1e-5)


def test_of_two_samples_equally_near_the_one_between_clusters_is_told_as_farther():
    centers = np.eye(3, dtype=np.float32)[:2]
    between, outside = np.array([[0.72, 0.694, 0], [0.72, 0, 0.694]], np.float32)
    told = {"centers": centers, "sizes": np.array([30, 30], np.int32), "means": np.empty((0, 3), np.float16)}
    told |= {"counts": np.empty(0, np.int32), "mine": np.empty(0, bool)}
    numbers = {"depth": 1, "clients": 2, "min_region": 1}
    one, other = (
        METHODS["typiclust"].answer(Holder(row[None], np.zeros(1, bool)), "nearest", told, numbers)["distances"][0, 0]
        for row in (between, outside)
    )
    assert other == pytest.approx(np.linalg.norm(outside - centers[0]), abs=0.026)
    assert one > other + 0.05


def nearest_of(rows, others, counts, size):
    """What a client of two tells of its rows in one cluster of `size` rows, and the sample it would give first."""
    holder = Holder(rows, np.zeros(len(rows), bool))
    told = {"centers": rows.mean(0, keepdims=True), "sizes": np.array([size], np.int32)}
    told |= {"means": np.concatenate([rows[:1], others]).astype(np.float16), "counts": np.array([9, *counts], np.int32)}
    told |= {"mine": np.array([True] + [False] * len(counts))}
    numbers = {"depth": 4, "clients": 2, "min_region": min(5, len(rows))}
    distances = METHODS["typiclust"].answer(holder, "nearest", told, numbers)["distances"]
    METHODS["typiclust"].answer(holder, "settle", told | {"clusters": np.zeros(1, np.int16)}, {"clients": 2})
    return distances, int(holder.picked[0])


def test_a_typical_sample_is_where_the_others_have_samples_too():
    """Two groups that are alike at the client; the others' cells lie in one of them."""
    rng = np.random.default_rng(0)
    groups = np.eye(4)[:2]
    noise = 0.05 * rng.normal(size=(30, 4))
    rows = np.concatenate([group + noise for group in groups])
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    for group in (0, 1):
        assert nearest_of(rows, groups[[group]], [40], 1000)[1] // 30 == group


@pytest.mark.parametrize(("members", "size", "step"), [(30, 1000, 0.02), (30, 40, 0.05), (1, 1000, 0.05)])
def test_distances_are_told_in_coarse_steps_where_anyone_could_compute_them(members, size, step):
    (rows,) = parts_of(1, (members,), spread=1.0)
    distances, _ = nearest_of(rows, rows[:1], [5], size)
    told = distances[np.isfinite(distances)] / step
    assert len(told) > 0
    assert np.allclose(told, np.rint(told), atol=1e-4)


def test_picks_go_to_clusters_with_the_fewest_labels_then_to_the_largest():
    none = np.zeros(4, np.int64)
    clusters = Clusters(np.zeros((4, 2), np.float32), np.array([30, 50, 40, 3]), np.array([0, 1, 0, 0]), none)
    distances = np.array(
        [[[0.1, 0.4], [0.2, 0.3], [0.5, np.inf], [0.1, 0.1]], [[0.3, 0.5], [0.1, 0.6], [0.2, 0.9], [0.3, 0.3]]]
    )
    turns = assign(clusters, distances, [3, 3], min_region=1)
    assert [cluster for _, cluster in turns] == [2, 0, 1, 2, 0, 1]
    assert [client for client, _ in turns] == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(("min_region", "clusters"), [(1, [2, 2, 1]), (3, [2, 0, 2])])
def test_a_cluster_is_small_only_if_it_is_with_all_that_may_be_kept_silent(min_region, clusters):
    """The first two are told to be of 5 rows; the cells near the second are of 9, but it has a label."""
    told, cells, labels = np.array([5, 0, 20]), np.array([4, 9, 18]), np.array([0, 1, 0])
    found = Clusters(np.zeros((3, 2), np.float32), told, labels, cells)
    turns = assign(found, np.full((2, 3, 1), 0.5), [2, 1], min_region)
    assert [cluster for _, cluster in turns] == clusters


def test_the_herds_gains_stay_those_of_a_fresh_count():
    rng = np.random.default_rng(9)
    c, landmarks = parts_of(9, (30, 50))
    offers = -np.sort(-rng.uniform(0.5, 1, size=(2, 30, 2)).astype(np.float32), axis=2)
    weights = rng.integers(5, 20, size=50)
    herd = Herd(c, landmarks, weights, offers, [9, 12], 1.0)
    best, used = np.zeros(50), np.zeros((2, 30), int)
    left = [9, 12]
    for _ in range(21):
        padded = np.concatenate([offers, np.full((2, 30, 1), NONE)], axis=2)
        heads = np.array([[padded[k, j, used[k, j]] if left[k] else NONE for j in range(30)] for k in range(2)])
        values = np.exp(-2 + 2 * heads.max(0) * (landmarks.astype(np.float64) @ c.T))
        gains = np.where(heads.max(0) > NONE, weights @ np.maximum(values - best[:, None], 0), -np.inf)
        client, candidate, cosine = herd.pick()
        assert gains[candidate] >= gains.max() - 1e-3
        assert client == heads[:, candidate].argmax()
        assert cosine == pytest.approx(heads[client, candidate])
        best = np.maximum(best, values[:, candidate])
        used[client, candidate] += 1
        left[client] -= 1
    assert herd.left.sum() == 0


@both
def test_picks_on_digits_are_worth_more_than_those_of_clients_alone(name):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x = digits.data - digits.data.mean(0)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    parts = [x[k::4] for k in range(4)]

    def coverage(order):
        picks = np.array([parts[client][position] for client, position in order])
        return np.exp(-(2 - 2 * x @ picks.T).min(1)).mean()

    order, _ = choose(name, parts, [5] * 4)
    alone = cofal.select(parts, [5] * 4, name, "per-client").order
    central = cofal.select(parts, [5] * 4, name).order
    assert coverage(order) > coverage(alone) + 0.5 * (coverage(central) - coverage(alone))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("typiclust", {"iterations": 1}),
        ("typiclust", {"min_region": 0}),
        ("maxherding", {"min_region": 2.5}),
        ("maxherding", {"lengthscale": -1.0}),
        ("maxherding", {"shifts": -1}),
        ("maxherding", {"shifts": 7}),
    ],
)
def test_wrong_parameters_are_named(name, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        choose(name, parts_of(0, (10, 10)), (1, 1), **wrong)


def test_how_few_samples_a_client_has_in_a_cluster_is_not_told():
    """Nor a distance for each of its samples: one in `min_region` at most, whatever the server asks for."""
    (rows,) = parts_of(1, (60,), groups=3, spread=0.1)
    holder = Holder(rows, np.zeros(60, bool))
    near = np.linalg.norm(rows - rows[0], axis=1)
    holder.taken[np.argsort(near)[1 : (near < 0.7).sum()]] = True  # one free sample is left there
    far = rows[[near.argmax()]]
    told = {"centers": np.concatenate([rows[:1], far]), "sizes": np.array([90, 90], np.int32)}
    told |= {"means": np.empty((0, 8), np.float16), "counts": np.empty(0, np.int32), "mine": np.empty(0, bool)}
    for asked, depth in ((3, 3), (10_000, 6)):
        numbers = {"depth": asked, "clients": 2, "min_region": 5}
        distances = METHODS["typiclust"].answer(holder, "nearest", told, numbers)["distances"]
        assert distances.shape == (2, depth)
        assert np.isfinite(distances).all()
        assert (np.diff(distances, axis=1) >= 0).all()
    settle = {"clients": 2, "min_region": 5}
    METHODS["typiclust"].answer(holder, "settle", told | {"clusters": np.array([0, 0, 1, -1], np.int16)}, settle)
    assert len(set(holder.picked.tolist())) == 4
    assert not holder.taken[holder.picked].any()
    assert holder.picked[0] == 0
