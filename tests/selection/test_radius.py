"""The radius estimates: exact quantiles of the distance to other clusters, found without labels and in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.rng import generator
from cofal.selection import radius as module
from cofal.selection.kmeans import kmeans
from cofal.selection.pool import Pool
from cofal.selection.radius import estimate_radius, purity_radius


def purity(pool: Pool, labels: np.ndarray, radius: float) -> float:
    """Share of the balls of `radius` that hold one cluster only, counted ball by ball."""
    x = pool.tile(0, pool.n).double().numpy()
    pure = 0
    for row in range(pool.n):
        inside = np.sqrt(((x - x[row]) ** 2).sum(1)) <= radius
        pure += len(set(labels[inside])) == 1
    return pure / pool.n


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(20, 150), d=st.integers(2, 10))
def test_the_radius_is_the_largest_of_its_purity(seed, n, d):
    pool = Pool([np.random.default_rng(seed).normal(size=(n, d))])
    for estimate, share in ((estimate_radius, module.PURITY), (purity_radius, module.PAPER_PURITY)):
        radius = estimate(pool, generator(seed), 5)
        labels = kmeans(pool, 5, generator(seed)).labels
        if radius == module.WITHOUT_STRUCTURE:
            continue
        assert purity(pool, labels, radius) >= share - 1e-9
        assert purity(pool, labels, radius + 2e-4) < share


def test_the_papers_radius_is_the_smaller():
    pool = Pool([np.random.default_rng(0).normal(size=(500, 8))])
    assert purity_radius(pool, generator(0)) < estimate_radius(pool, generator(0))


def test_order_and_owners_do_not_matter_also_when_sampled(monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", 200)
    x = np.random.default_rng(1).normal(size=(600, 6))
    shuffled = x[np.random.default_rng(2).permutation(600)]
    together = estimate_radius(Pool([x]), generator(3))
    assert together == estimate_radius(Pool([shuffled[:100], shuffled[100:]]), generator(3))


def test_a_sample_tells_about_the_pool(monkeypatch):
    x = np.random.default_rng(4).normal(size=(4000, 16))
    sampled = estimate_radius(Pool([x]), generator(0))
    monkeypatch.setattr(module, "SAMPLE", 4000)
    assert sampled == pytest.approx(estimate_radius(Pool([x]), generator(0)), rel=0.1)


@pytest.mark.parametrize("x", [np.ones((1, 3)), np.ones((40, 3)), np.array([[1.0, 0], [0, 1]])])
def test_degenerate_pools_still_get_a_radius(x):
    radius = estimate_radius(Pool([x]), generator(0))
    assert 0 < radius < 2


def test_on_digits_it_lies_where_probcover_works():
    """Central picks over four IID clients are within 2 % of the best for radii from 0.75 to 0.95 (docs/radius.md)."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    pool = Pool([digits.data - digits.data.mean(0)])
    estimates = [estimate_radius(pool, generator(seed)) for seed in range(4)]
    assert all(0.75 <= estimate <= 0.95 for estimate in estimates)
    assert all(purity_radius(pool, generator(seed), 10) < 0.65 for seed in range(4))
