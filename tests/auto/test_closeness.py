"""Overlap close up and at large: against a naive count, and what it must show for one source and for look-alikes."""

import importlib

import numpy as np
import pytest
from clients import ALIKE, UNLIKE, kinds, look_alikes
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.rng import generator
from cofal.selection.closeness import appearance_only, closeness, neighbours
from cofal.selection.overlap import mean_of_pairs
from cofal.selection.pool import Pool

module = importlib.import_module("cofal.selection.closeness")


def naive(rows, owner, clients, neighbours):
    """The overlap of each two clients among the nearest rows, counted one by one."""
    count = np.zeros((clients, clients))
    for i in range(len(rows)):
        distances = [(float(np.sum((rows[i] - rows[j]) ** 2)), j) for j in range(len(rows)) if j != i]
        for _, j in sorted(distances)[:neighbours]:
            count[owner[i], owner[j]] += 1
    size = np.bincount(owner, minlength=clients)
    chance = count / np.maximum(np.outer(size, size) - np.diag(size), 1)
    found = np.ones((clients, clients))
    for a in range(clients):
        for b in range(clients):
            within = (chance[a, a] + chance[b, b]) / 2
            if a != b and min(size[a], size[b]) > 1 and within > 0:
                found[a, b] = (chance[a, b] + chance[b, a]) / 2 / within
    return found


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_it_counts_what_a_naive_count_does(seed, sizes):
    rng = np.random.default_rng(seed)
    pool = Pool([rng.normal(size=(n, 6)) for n in sizes])
    seen = closeness(pool, generator(0, "auto"))
    rows = pool.tile(0, pool.n).numpy().astype(np.float64)
    few, many = neighbours(pool.n)
    assert seen.near == pytest.approx(naive(rows, pool.owner, pool.clients, few))
    assert seen.wide == pytest.approx(naive(rows, pool.owner, pool.clients, many))
    assert seen.near_again.shape == (50, pool.clients, pool.clients)


def test_one_source_loses_nothing_close_up_and_look_alikes_lose_much():
    alike = closeness(Pool(kinds(np.random.default_rng(0), ALIKE)), generator(0, "auto"))
    assert mean_of_pairs(alike.near) == pytest.approx(1, abs=0.1)
    assert abs(appearance_only(alike.near, alike.wide)) < 0.1
    unlike = closeness(Pool(look_alikes(np.random.default_rng(0), UNLIKE)), generator(0, "auto"))
    assert mean_of_pairs(unlike.wide) > 0.3
    assert appearance_only(unlike.near, unlike.wide) > 0.2


def test_a_large_pool_is_judged_by_several_samples_of_the_size_that_a_small_one_has(monkeypatch):
    clients = kinds(np.random.default_rng(3), ALIKE)
    monkeypatch.setattr(module, "SAMPLE", 240)
    seen = [closeness(Pool(clients), generator(seed, "auto")) for seed in range(8)]
    monkeypatch.setattr(module, "SAMPLES", 1)
    once = [closeness(Pool(clients), generator(seed, "auto")) for seed in range(8)]
    assert np.std([appearance_only(each.near, each.wide) for each in seen]) < np.std(
        [appearance_only(each.near, each.wide) for each in once]
    )
    assert seen[0].near.shape == once[0].near.shape
    assert seen[0].near_again.shape == once[0].near_again.shape


def test_neither_the_order_of_clients_nor_that_of_rows_matters():
    first, second, third = look_alikes(np.random.default_rng(1), UNLIKE)
    seen = closeness(Pool([first, second, third]), generator(0, "auto"))
    moved = closeness(Pool([third[::-1], first, second]), generator(0, "auto"))
    order = [1, 2, 0]
    assert moved.near[np.ix_(order, order)] == pytest.approx(seen.near)
    assert moved.wide_again[:, order][:, :, order] == pytest.approx(seen.wide_again)


@given(st.floats(0, 0.9), st.floats(0, 0.9), st.floats(0, 1))
def test_harm_is_how_blurred_the_embedding_is_as_far_as_clients_differ(truly, large, part):
    close = part * large
    shown = [np.array([[1, q], [q, 1]]) for q in (truly + (1 - truly) * close, truly + (1 - truly) * large)]
    blurred = (large - close) / (1 - large)
    if blurred < 1.5 and (1 - truly) * (1 - large) > 0.02:  # beyond, it is bounded
        assert appearance_only(*shown) == pytest.approx(blurred * (1 - truly) * (1 - close))
    assert -0.5 <= appearance_only(*shown) <= 1.5


@given(st.integers(0, 100_000))
def test_there_are_never_more_neighbours_close_up_than_at_large(n):
    few, many = neighbours(n)
    assert 0 <= few <= many <= max(n - 1, 0)
    assert few < many or n < 180
