"""`coordination="auto"`: by kind where the selector can; else its two ends are central and per-client."""

import importlib

import numpy as np
import pytest
from clients import ALIKE, TWO_AND_ONE, UNLIKE, kinds, look_alikes
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import cofal
from cofal.errors import UserError
from cofal.rng import generator
from cofal.selection.auto import Decision, blur_margin, choose_by, clear_overlap, decide, settle
from cofal.selection.overlap import measure
from cofal.selection.pool import Budgets, Picked, Pool
from cofal.selection.typiclust import typiclust

METHODS = {"probcover": {"delta": 0.7}, "typiclust": {}, "maxherding": {}}
AUTO_RADIUS = {"probcover": {"delta": "auto"}, "typiclust": {}, "maxherding": {}}


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def own(pool, budgets, rng):
    """A selector of a user's own, which knows nothing of kinds."""
    return typiclust(pool, budgets, rng)


def test_alike_clients_choose_as_under_central_coordination():
    embeddings = kinds(np.random.default_rng(0), ALIKE)
    picks = cofal.select(embeddings, [3, 4, 5], own, "auto")
    assert picks.decision.kind == "central"
    assert picks.order == cofal.select(embeddings, [3, 4, 5], own, "central").order


def test_unlike_clients_choose_as_if_alone():
    embeddings = look_alikes(np.random.default_rng(1), UNLIKE)
    picks = cofal.select(embeddings, [3, 4, 5], own, "auto")
    assert picks.decision.kind == "per-client"
    assert picks.order == cofal.select(embeddings, [3, 4, 5], own, "per-client").order


def test_two_alike_clients_choose_together_and_the_third_alone():
    embeddings = look_alikes(np.random.default_rng(2), TWO_AND_ONE)
    picks = cofal.select(embeddings, [4, 4, 4], own, "auto")
    assert picks.decision.groups == [[0, 1], [2]]
    pair = cofal.select(embeddings[:2], [4, 4], own, "central")
    alone = cofal.select(embeddings[2:], [4], own, "per-client")
    assert [rows.tolist() for rows in picks.indices] == [rows.tolist() for rows in [*pair.indices, *alone.indices]]


@pytest.mark.parametrize("method", METHODS)
def test_where_a_selector_tells_kinds_apart_alike_clients_repeat_nothing(method):
    embeddings = kinds(np.random.default_rng(0), ALIKE)
    picks = cofal.select(embeddings, [2, 2, 2], method, "auto", **METHODS[method])
    assert picks.decision.kind == ("central" if method == "typiclust" else "by-kind")
    assert picks.decision.groups == [[0, 1, 2]]
    assert sorted(row // 40 for _, row in picks.order) == list(range(6)), "one label for each kind"


@pytest.mark.parametrize("method", METHODS)
def test_where_a_selector_tells_kinds_apart_blurred_ones_are_not_neglected(method):
    """Digits blurred by noise, two of them to a client: a label of one stands for no row of another."""
    x, y = load_digits(return_X_y=True)
    right = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x_unit = unit(unit(x - x.mean(0)) + 0.25 * rng.normal(size=x.shape))
        order = rng.permutation(len(x))
        held, test = order[:900], order[900:]
        parts = [held[np.isin(y[held], two)] for two in rng.permutation(10).reshape(5, 2)]
        for how in ("central", "auto"):
            picks = cofal.select([x_unit[part] for part in parts], [6] * 5, method, how, **AUTO_RADIUS[method])
            assert how == "central" or picks.decision.kind == "by-kind"
            rows = np.concatenate([part[picked] for part, picked in zip(parts, picks.indices)])
            nearest = (x_unit[test] @ x_unit[rows].T).argmax(1)
            right.append((y[rows][nearest] == y[test]).mean())
    assert np.mean(right[1::2]) > np.mean(right[::2]) + 0.01


def test_typiclust_tells_kinds_apart_only_where_neither_end_is_likely_the_better_one():
    """Digits, two of them to a client, clear and blurred: chances of central 0.9 and 0.4."""
    x, y = load_digits(return_X_y=True)
    for noise, kind, params in ((0.0, "central", {}), (0.25, "by-kind", {"kinds": True})):
        rng = np.random.default_rng(0)
        x_unit = unit(unit(x - x.mean(0)) + noise * rng.normal(size=x.shape))
        held = rng.permutation(len(x))[:900]
        clients = [x_unit[held[np.isin(y[held], two)]] for two in rng.permutation(10).reshape(5, 2)]
        picks = cofal.select(clients, [6] * 5, "typiclust", "auto")
        assert picks.decision.kind == kind
        assert picks.order == cofal.select(clients, [6] * 5, "typiclust", **params).order
        assert cofal.select(clients, [6] * 5, "maxherding", "auto").decision.kind == "by-kind"


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted([*METHODS, "random"])), st.integers(1, 5))
def test_budgets_are_spent_exactly_on_distinct_unlabelled_rows(seed, method, clients):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 25, size=clients)
    if sizes.sum() == 0:
        return
    embeddings = [rng.normal(size=(n, 5)) for n in sizes]
    labeled = [rng.choice(n, size=min(n, 2), replace=False) for n in sizes]
    budgets = [int(rng.integers(0, n - len(own) + 1)) for n, own in zip(sizes, labeled)]
    picks = cofal.select(embeddings, budgets, method, "auto", labeled)
    assert [len(rows) for rows in picks.indices] == budgets
    assert len(set(picks.order)) == sum(budgets)
    for client, rows in enumerate(picks.indices):
        assert not set(rows.tolist()) & set(labeled[client].tolist())
        assert [row for owner, row in picks.order if owner == client] == rows.tolist()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(2, 10), st.floats(0, 0.9))
def test_decisions_put_every_client_in_one_group(seed, clients, cells, blurred):
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.5, 20, size=(clients, cells)))
    decision = settle(counts, blurred, rng)
    assert sorted(client for group in decision.groups for client in group) == list(range(clients))
    assert 0 <= decision.certainty <= 1
    assert (decision.kind == "central") == (len(decision.groups) == 1)


@given(st.floats(0, 0.9), st.floats(-0.5, 1), st.floats(0, 0.5))
def test_choosing_together_pays_more_for_clients_more_alike_and_less_under_more_blur(blurred, clear, more):
    before = blur_margin(np.array(clear), blurred)
    assert blur_margin(np.array(clear + more), blurred) >= before
    assert blur_margin(np.array(clear), min(blurred + more, 1)) <= before + 1e-12 or clear > 1
    assert blur_margin(np.array(1.0), blurred) > 0  # one source chooses together however blurred


def test_clients_that_are_partly_alike_choose_together_only_in_a_clear_embedding():
    """The same rows in common cells, under little blur and under much."""
    counts = np.array([[40, 40, 20, 0, 0, 0], [20, 20, 20, 20, 20, 0], [0, 0, 20, 40, 0, 40]])
    kinds_of = {blurred: settle(counts, blurred, generator(0, "auto")).kind for blurred in (0.05, 0.35)}
    assert kinds_of == {0.05: "central", 0.35: "per-client"}


def test_where_all_should_not_choose_together_only_one_source_does():
    counts = np.array([[30, 30, 0, 0], [30, 30, 0, 0], [5, 25, 30, 0], [0, 0, 20, 40]])
    decision = settle(counts, 0.4, generator(0, "auto"))
    assert decision.groups == [[0, 1], [2], [3]]
    assert decision.kind == "mixed"
    assert settle(counts, 0.02, generator(0, "auto")).kind == "central"
    assert settle(counts, 0.02, generator(0, "auto"), least=0.5).groups == [[0, 1], [2], [3]]


def test_unlike_clients_that_the_embedding_tells_apart_lose_nothing_by_choosing_together():
    decision = decide(Pool(kinds(np.random.default_rng(12), UNLIKE)))
    assert decision.kind == "central"
    assert decision.harm < 0.02
    assert "tells them apart" in decision.in_words()


def test_more_blur_never_brings_two_clients_closer():
    matrix = np.linspace(0, 1, 11)
    before = clear_overlap(matrix, 0.0)
    for blurred in (0.1, 0.5, 0.9):
        after = clear_overlap(matrix, blurred)
        assert (after <= before + 1e-12).all()
        assert after[-1] == pytest.approx(1)
        before = after


def test_the_order_of_clients_does_not_change_who_chooses_with_whom():
    embeddings = look_alikes(np.random.default_rng(4), TWO_AND_ONE)
    first = decide(Pool(embeddings))
    moved = decide(Pool([embeddings[2], embeddings[0], embeddings[1]]))
    assert first.groups == [[0, 1], [2]]
    assert moved.groups == [[0], [1, 2]]
    assert moved.overlap.mean == pytest.approx(first.overlap.mean)


@pytest.mark.parametrize("sharing", ["embeddings", "aggregates"])
def test_clients_do_not_change_sides_from_one_selection_to_the_next(sharing, monkeypatch):
    monkeypatch.setattr(importlib.import_module("cofal.selection.closeness"), "SAMPLE", 600)  # of 1,800 rows
    embeddings = look_alikes(np.random.default_rng(7), TWO_AND_ONE)
    first, later = (
        cofal.select(embeddings, [2, 2, 2], "typiclust", "auto", sharing=sharing, labeled=labelled, seed=seed)
        for labelled, seed in ((None, 0), ([np.arange(5)] * 3, 1))
    )
    assert first.decision.as_dict() == later.decision.as_dict()
    measured = [decide.__wrapped__(Pool(embeddings, labelled)) for labelled in (None, [np.arange(5)] * 3)]
    assert measured[0].as_dict() == measured[1].as_dict(), "not because it is remembered"


def test_groups_take_turns_one_pick_for_each_of_their_clients():
    pool = Pool([np.eye(6)[:, :6] for _ in range(3)])
    overlap = measure(np.ones((3, 2), np.int64), np.random.default_rng(0))
    decision = Decision(overlap, 0.1, -0.1, 0.01, [[0, 2], [1]], 1.0, 0.025)

    def first_rows(part: Pool, budgets: Budgets) -> Picked:
        rows = [np.flatnonzero(part.owner == k)[:b] for k, b in enumerate(budgets.per_client)]
        return Picked(np.concatenate(rows))

    picked = choose_by(decision, pool, Budgets([2, 2, 2], pool), first_rows)
    assert [pool.locate(int(row)) for row in picked.rows] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (1, 1)]


def test_the_result_says_what_was_measured_and_decided():
    embeddings = look_alikes(np.random.default_rng(5), TWO_AND_ONE)
    assert "own kind" in cofal.select(embeddings, [2, 2, 2], coordination="auto").decision.in_words()
    told = cofal.select(embeddings, [2, 2, 2], own, "auto").decision.as_dict()
    assert told["decision"] == "mixed"
    assert told["groups"] == [[0, 1], [2]]
    low, high = told["overlap_interval"]
    assert low <= min(told["overlap"], 1) <= high  # chance may take it beyond 1
    assert 0.5 < told["certainty"] <= 1
    assert told["margin"] < 0 < told["harm"]
    assert cofal.select(embeddings, [2, 2, 2]).decision is None


def test_noise_is_allowed_since_a_server_sees_the_embeddings():
    embeddings = kinds(np.random.default_rng(6), ALIKE)
    picks = cofal.select(embeddings, [2, 2, 2], coordination="auto", epsilon=0.3)
    assert len(picks.order) == 6


def test_one_total_is_divided_among_the_clients():
    embeddings = kinds(np.random.default_rng(7), ALIKE)
    picks = cofal.select(embeddings, 15, coordination="auto")
    assert sum(len(rows) for rows in picks.indices) == 15
    with pytest.raises(UserError, match="721 but the clients have 720"):
        cofal.select(embeddings, 721)
    with pytest.raises(UserError, match="True"):
        cofal.select(embeddings, True)


@pytest.mark.parametrize("method", METHODS)
def test_from_aggregates_alike_clients_choose_as_under_aggregate_coordination(method):
    embeddings = kinds(np.random.default_rng(8), ALIKE)
    picks = cofal.select(embeddings, [3, 4, 5], method, "auto", sharing="aggregates", **METHODS[method])
    veiled = cofal.select(embeddings, [3, 4, 5], method, "aggregate", **METHODS[method])
    assert picks.decision.kind == "central"
    assert picks.order == veiled.order
    assert veiled.rounds < picks.rounds <= veiled.rounds + 7
    assert picks.bytes_up > veiled.bytes_up


@pytest.mark.parametrize("method", METHODS)
def test_from_aggregates_unlike_clients_choose_alone(method):
    embeddings = kinds(np.random.default_rng(9), UNLIKE)
    picks = cofal.select(embeddings, [3, 4, 5], method, "auto", sharing="aggregates", **METHODS[method])
    assert picks.decision.kind == "per-client"
    assert picks.order == cofal.select(embeddings, [3, 4, 5], method, "per-client", **METHODS[method]).order


def test_from_aggregates_groups_are_found_too_and_small_counts_stay_silent():
    embeddings = kinds(np.random.default_rng(10), TWO_AND_ONE, spread=1.0)
    picks = cofal.select(embeddings, [4, 4, 4], coordination="auto", sharing="aggregates", min_region=7)
    assert picks.decision.groups == [[0, 1], [2]]
    counts = picks.decision.overlap.counts
    assert counts[counts > 0].min() >= 7
    assert [len(rows) for rows in picks.indices] == [4, 4, 4]


def test_mistakes_of_sharing_are_told():
    embeddings = kinds(np.random.default_rng(11), ALIKE)
    with pytest.raises(UserError, match="did you mean 'aggregates'"):
        cofal.select(embeddings, [1, 1, 1], coordination="auto", sharing="agregates")
    with pytest.raises(UserError, match="needs sharing = 'embeddings'"):
        cofal.select(embeddings, [1, 1, 1], coordination="auto", sharing="aggregates", epsilon=0.2)
    with pytest.raises(UserError, match="give one budget per client"):
        cofal.select(embeddings, 9, coordination="auto", sharing="aggregates")
    with pytest.raises(UserError, match="use coordination = 'aggregate' or 'auto', not 'central'"):
        cofal.select(embeddings, [1, 1, 1], sharing="aggregates")
