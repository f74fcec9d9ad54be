"""Rows evened out where a few directions hold their variance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import cofal
from cofal.rng import generator
from cofal.selection.evenness import CLUSTERED, HELD, MOST, clustered, evened, held_by, principal
from cofal.selection.pool import Budgets, Pool
from cofal.selection.typiclust import typiclust


def rows_of(pool):
    return pool.tile(0, pool.n).numpy()


def collapsed(rng, n=600, d=24, kinds=20, weak=0.07):
    """Kinds that only weak directions tell apart, under two strong ones that say nothing; and the kind of each row."""
    kind = rng.integers(kinds, size=n)
    x = weak * (rng.normal(size=(kinds, d))[kind] + rng.normal(size=(n, d)))
    x[:, :2] = rng.normal(size=(n, 2))
    x[:, 2] = 3
    return x, kind


def naive(x, power):
    """The definition: principal directions from the middle, each divided by a power of its variance."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    away = x - x.mean(0)
    variances, axes = np.linalg.eigh(away.T @ away / len(x))
    turned = away @ axes / (np.maximum(variances, 0) + 0.05 * variances.mean()) ** power
    return turned / np.linalg.norm(turned, axis=1, keepdims=True), variances


def test_an_even_embedding_is_left_as_it_is():
    pool = Pool(list(np.random.default_rng(0).normal(size=(3, 200, 12))))
    assert evened(pool) is pool


def test_strong_directions_of_clusters_are_left_alone():
    rng = np.random.default_rng(4)
    kind = rng.integers(5, size=600)
    x = rng.normal(size=(5, 24))[kind] + 0.05 * rng.normal(size=(600, 24))
    pool, cloud = Pool([x[:300], x[300:]]), Pool([rng.normal(size=(600, 3)) @ rng.normal(size=(3, 24)) + 9])
    assert held_by(np.linalg.eigvalsh(np.cov(rows_of(pool).T))) < HELD * 24
    assert evened(pool) is pool
    assert clustered(pool, principal(pool), generator(0)) > 0.8
    by_chance = [clustered(cloud, principal(cloud), generator(seed)) for seed in range(8)]
    assert max(by_chance) < CLUSTERED
    assert abs(np.mean(by_chance)) < 0.1


@pytest.mark.parametrize(("weak", "power"), [(0.07, None), (0.001, MOST)])
def test_a_collapsed_one_is_evened_by_the_definition_and_no_more_than_needed(weak, power):
    d = 24
    x, _ = collapsed(np.random.default_rng(1), d=d, weak=weak)
    seen = rows_of(evened(Pool([x[:400], x[400:]])))
    wanted = HELD * min(d, len(x) - 1)
    powers = np.linspace(0, MOST, 401) if power is None else [power]
    variances = naive(x, 0)[1]
    floor = 0.05 * variances.mean()
    enough = [p for p in powers if held_by(np.maximum(variances, 0) * (variances + floor) ** (-2 * p)) >= wanted]
    assert bool(enough) == (power is None), "the weakest cannot be evened so far: they are as far as allowed"
    expected, _ = naive(x, enough[0] if enough else MOST)
    np.testing.assert_allclose(seen @ seen.T, expected @ expected.T, atol=5e-3)  # axes may be turned around


def test_neighbours_are_of_one_kind_more_often():
    x, kind = collapsed(np.random.default_rng(2))
    right = []
    for pool in (Pool([x]), evened(Pool([x]))):
        alike = rows_of(pool) @ rows_of(pool).T
        np.fill_diagonal(alike, -np.inf)
        right.append((kind[alike.argmax(1)] == kind).mean())
    assert right[1] > right[0] + 0.1


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_rows_are_evened_alike_bit_for_bit_in_any_order_and_with_any_number_of_threads(seed):
    rng = np.random.default_rng(seed)
    x, _ = collapsed(rng, n=200)
    order = rng.permutation(200)
    plain = rows_of(evened(Pool([x[:50], x[50:]])))
    with threadpool_limits(1):
        shuffled = rows_of(evened(Pool([x[order[:120]], x[order[120:]]])))
    np.testing.assert_array_equal(shuffled, plain[order])


@pytest.mark.parametrize("rows", [np.ones((1, 30)), np.ones((40, 30)), np.tile(np.eye(30)[:2], (9, 1))])
def test_few_and_equal_rows_are_no_trouble(rows):
    seen = rows_of(evened(Pool([rows, rows[:0]])))
    assert seen.shape == rows.shape
    np.testing.assert_allclose(np.linalg.norm(seen, axis=1), 1, atol=1e-6)


def test_typiclust_sees_rows_evened_out_under_auto_and_nowhere_else():
    x, _ = collapsed(np.random.default_rng(3))
    clients, budgets, labeled = [x[:200], x[200:400], x[400:]], [4, 4, 4], [[3], [], [5, 6]]
    pool = Pool(clients, [np.array(own, int) for own in labeled])
    picks = cofal.select(clients, budgets, "typiclust", "auto", labeled)
    assert picks.decision.kind == "central"
    seen = typiclust(evened(pool).labeled_as(pool), Budgets(budgets, pool), generator(0, "select"))
    assert picks.order == [pool.locate(row) for row in seen.rows]
    assert picks.order != cofal.select(clients, budgets, "typiclust", labeled=labeled).order
