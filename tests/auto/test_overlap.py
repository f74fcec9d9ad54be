"""The measure of likeness: its ends, its symmetry, its freedom from bias, its uncertainty."""

import numpy as np
import pytest
from clients import ALIKE, UNLIKE, kinds
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cofal.rng import generator
from cofal.selection.blur import blur
from cofal.selection.overlap import cell_counts, mean_of_pairs, measure, number_of_cells, overlap_matrix, resampled
from cofal.selection.pool import Pool
from cofal.selection.worth import divide_by_worth, worth

tables = arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 8)), elements=st.integers(0, 40))


@settings(deadline=None, max_examples=60)
@given(tables)
def test_symmetric_never_negative_and_blind_to_the_order_of_cells_and_clients(counts):
    matrix = overlap_matrix(counts)
    assert np.allclose(matrix, matrix.T)
    assert (matrix >= 0).all()
    assert (np.diag(matrix) == 1).all()
    rng = np.random.default_rng(0)
    clients, cells = rng.permutation(counts.shape[0]), rng.permutation(counts.shape[1])
    assert np.allclose(overlap_matrix(counts[clients][:, cells]), matrix[np.ix_(clients, clients)])


@settings(deadline=None, max_examples=30)
@given(tables.filter(lambda counts: (counts.sum(1) > 1).all()))
def test_zero_just_where_two_clients_share_no_cell(counts):
    matrix = overlap_matrix(counts)
    shared = (counts[:, None] * counts[None]).sum(2) > 0
    within = (counts * (counts - 1)).sum(1)
    known = (within[:, None] + within) > 0
    off = ~np.eye(len(counts), dtype=bool) & known
    assert ((matrix > 0) == shared)[off].all()


def test_one_source_has_overlap_one_on_average_however_few_rows_it_shows():
    rng = np.random.default_rng(3)
    source = rng.dirichlet(np.ones(20))
    means = mean_of_pairs(overlap_matrix(rng.multinomial(30, source, size=(300, 4))))
    assert means.mean() == pytest.approx(1, abs=0.05)  # the plain ratio of products would show 0.7


def test_the_interval_holds_the_truth_nineteen_times_in_twenty():
    rng = np.random.default_rng(5)
    first, second = rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(12))
    truth = 2 * first @ second / (first @ first + second @ second)
    held = 0
    for _ in range(150):
        found = measure(np.stack([rng.multinomial(300, first), rng.multinomial(300, second)]), rng)
        low, high = found.interval
        held += low <= truth <= high
    assert held / 150 > 0.88


def test_clients_with_nothing_to_compare_count_as_alike():
    assert overlap_matrix(np.array([[5, 5], [0, 0], [1, 0]])).tolist() == np.ones((3, 3)).tolist()
    assert measure(np.array([[3, 4]]), np.random.default_rng(0)).mean == 1


@settings(deadline=None, max_examples=20)
@given(tables)
def test_samples_drawn_again_are_as_large(counts):
    for again in resampled(counts, 3, np.random.default_rng(1)):
        assert (again.sum(1) == counts.sum(1)).all()
        assert (again[counts == 0] == 0).all()


def test_cells_are_counted_by_client():
    rng = np.random.default_rng(0)
    pool = Pool(kinds(rng, UNLIKE))
    counts = cell_counts(pool, 6, generator(0, "cells"))
    assert counts.sum(1).tolist() == [240, 240, 240]
    assert measure(counts, rng).mean < 0.05
    assert number_of_cells(np.array([240, 240, 240])) == 20
    assert number_of_cells(np.array([0, 3])) == 3
    assert number_of_cells(np.array([0])) == 1


def test_blur_grows_with_noise_and_is_little_where_kinds_are_clear():
    clear, noisy = (
        blur(Pool(kinds(np.random.default_rng(1), ALIKE, spread=spread)), generator(0, "blur")) for spread in (0.3, 3.0)
    )
    assert clear < 0.15  # ten groups of six kinds: the halves of a kind that was cut in two overlap
    assert clear + 0.2 < noisy <= 0.9
    assert blur(Pool([np.eye(3)]), generator(0, "blur")) == 0
    assert 0 <= blur(Pool([np.eye(60)]), generator(0, "blur")) <= 0.9  # rows that are zero in one half


@settings(deadline=None, max_examples=40)
@given(tables)
def test_worth_adds_up_to_the_cells_that_anyone_holds(counts):
    assert worth(counts).sum() == pytest.approx((counts.sum(0) > 0).sum())


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 40), st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_a_total_is_divided_whole_and_within_what_clients_have(total, sizes):
    rng = np.random.default_rng(total)
    if sum(sizes) == 0:
        return
    pool = Pool([rng.normal(size=(n, 5)) for n in sizes])
    total = min(total, sum(sizes))
    found = divide_by_worth(total, pool, generator(0, "worth"))
    assert sum(found) == total
    assert all(0 <= share <= size for share, size in zip(found, sizes))


def test_variety_earns_labels_and_copies_do_not():
    rng = np.random.default_rng(2)
    varied, one_kind = kinds(rng, [[40] * 6, [240, 0, 0, 0, 0, 0]])
    shares = divide_by_worth(24, Pool([varied, one_kind]), generator(0, "worth"))
    assert shares[0] > shares[1]
    alike = divide_by_worth(24, Pool(kinds(rng, ALIKE)), generator(0, "worth"))
    assert max(alike) - min(alike) <= 2
