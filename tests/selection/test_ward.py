"""Ward's method on weighted points, against scipy's on copies."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import cut_tree, linkage

from cofal.selection.aggregate.ward import ward


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 60), d=st.integers(1, 8), share=st.floats(0, 1))
def test_a_weight_counts_as_so_many_copies(seed, size, d, share):
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(size, d)), rng.integers(1, 5, size)
    weights[0] += 1  # two rows at least: of one, scipy makes no tree
    k = 1 + int(share * (size - 1))
    found = ward(points, weights, k)
    expected = cut_tree(linkage(np.repeat(points, weights, axis=0), "ward"), k)[:, 0]
    both = set(zip(np.repeat(found, weights).tolist(), expected.tolist()))
    assert sorted(set(found.tolist())) == list(range(k))
    assert len(both) == k


@given(st.integers(1, 12))
def test_copies_are_merged_first(k):
    points = np.repeat(np.random.default_rng(0).normal(size=(12, 3)), 5, axis=0)
    found = ward(points, np.full(60, 7.0), k).reshape(12, 5)
    assert len(set(found[:, 0].tolist())) == k
    assert (found == found[:, :1]).all()
