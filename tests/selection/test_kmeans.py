"""K-means: the labels are truly nearest, the seed arrives, and neither threads, order nor tiles change the clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.errors import UserError
from cofal.rng import generator
from cofal.selection import kmeans as module
from cofal.selection import pool as pools
from cofal.selection.kmeans import kmeans, squared_distances
from cofal.selection.pool import Pool


def unit(arrays: list[np.ndarray]) -> Pool:
    return Pool(arrays).in_memory()


def clustered(n: int, d: int, groups: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(groups, d))[rng.integers(groups, size=n)] + 0.3 * rng.normal(size=(n, d))


def naive_lloyd(pool: Pool, centers: np.ndarray, iterations: int) -> np.ndarray:
    """Lloyd's iterations as in a textbook, all distances each time; needs no cluster to run empty."""
    x = pool.tile(0, pool.n).double().numpy()
    for _ in range(iterations):
        labels = ((x[:, None] - centers) ** 2).sum(2).argmin(1)
        means = np.stack([x[labels == c].mean(0) for c in range(len(centers))])
        if np.allclose(means, centers, atol=0, rtol=0):
            break
        centers = means
    return labels


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 120), d=st.integers(1, 9), groups=st.integers(1, 8), k=st.integers(1, 30), seed=st.integers(0, 99)
)
def test_every_row_is_in_the_nearest_cluster_and_every_centre_is_a_mean(n, d, groups, k, seed):
    pool = unit([clustered(n, d, groups, seed)])
    k = min(k, n)
    result = kmeans(pool, k, generator(seed))
    x = pool.tile(0, n).double().numpy()
    squares = ((x[:, None] - result.centers) ** 2).sum(2)
    own = squares[np.arange(n), result.labels]
    assert np.all(own <= squares.min(1) + 1e-12)
    np.testing.assert_allclose(squared_distances(pool, result.labels, result.centers), own, atol=1e-12)
    if result.iterations < 100:  # n < 200: it ended because no row changed cluster
        for cluster in np.unique(result.labels):
            np.testing.assert_allclose(result.centers[cluster], x[result.labels == cluster].mean(0), atol=1e-9)


def test_bounds_skip_rows_without_changing_the_result(monkeypatch):
    monkeypatch.setattr(module, "SETTLED", 0)
    monkeypatch.setattr(module, "GATHERING", 0)  # skip whenever there is a row to skip
    pool = unit([clustered(1500, 16, 40, seed=3)])
    seeds = pool.rows(np.arange(0, 1500, 50)).double().numpy()
    result = module._lloyd(pool, seeds.copy(), 100)
    assert np.array_equal(result.labels, naive_lloyd(pool, seeds, 100))
    assert result.iterations > 3


def test_the_seed_arrives_and_repeats():
    pool = unit([clustered(400, 8, 5, seed=0)])
    first, again, other = (kmeans(pool, 20, generator(seed)).labels for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_number_of_threads_does_not_matter():
    pool = unit([clustered(3000, 32, 10, seed=1)])
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(kmeans(pool, 60, generator(0)))
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(results[0].labels, other.labels) for other in results[1:])
    assert all(np.array_equal(results[0].centers, other.centers) for other in results[1:])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), k=st.integers(1, 25), cut=st.integers(0, 300))
def test_the_order_and_the_owners_of_the_rows_do_not_matter(seed, k, cut):
    x = clustered(300, 6, 7, seed)
    shuffle = np.random.default_rng(seed).permutation(300)
    together = kmeans(unit([x]), k, generator(seed)).labels
    apart = kmeans(unit([x[shuffle][:cut], x[shuffle][cut:]]), k, generator(seed)).labels
    assert np.array_equal(together[shuffle], apart)


def test_tiles_do_not_matter(monkeypatch):
    pool = unit([clustered(700, 8, 9, seed=2)])
    whole = kmeans(pool, 30, generator(0)).labels
    monkeypatch.setattr(module, "TILE", 64)  # 700 is no multiple: the last, partial tile counts too
    assert np.array_equal(whole, kmeans(pool, 30, generator(0)).labels)


def test_duplicates_leave_clusters_empty_rather_than_fail():
    pool = unit([np.repeat(np.eye(3), [5, 1, 7], axis=0)])
    result = kmeans(pool, 8, generator(0))
    assert (result.sizes > 0).sum() == 3
    assert squared_distances(pool, result.labels, result.centers).sum() == pytest.approx(0, abs=1e-12)


def test_an_empty_cluster_is_refilled():
    pool = unit([clustered(200, 4, 6, seed=5)])
    far = np.full((4, 4), 0.0)
    far[1:] = [-9, -9, -9, -9]  # three centres that no row is near
    assert (module._lloyd(pool, far, 100).sizes > 0).all()


def test_quality_is_that_of_scikit_learn():
    from sklearn.cluster import KMeans

    pool = unit([clustered(4000, 24, 30, seed=4)])
    x = pool.tile(0, pool.n).numpy()
    ours = [kmeans(pool, 50, generator(seed)) for seed in range(3)]
    inertia = np.median([squared_distances(pool, one.labels, one.centers).sum() for one in ours])
    theirs = np.median([KMeans(50, n_init=1, random_state=seed).fit(x).inertia_ for seed in range(3)])
    assert inertia <= 1.02 * theirs


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_memory_map_is_read_in_tiles(tmp_path, monkeypatch, dtype):
    x = clustered(600, 8, 6, seed=7).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr(module, "TILE", 128)
    monkeypatch.setattr(module, "SCORES", 1)
    monkeypatch.setattr(module, "SEED_ROWS", 128)
    monkeypatch.setattr(module, "SEED_ROWS_PER_CLUSTER", 1)
    monkeypatch.setattr(pools, "KEPT_BYTES", 0)
    asked = []
    rows = Pool.rows
    monkeypatch.setattr(Pool, "rows", lambda self, index, out=None: asked.append(len(index)) or rows(self, index))
    result = kmeans(unit([mapped]), 12, generator(0))
    assert max(asked) <= 128
    assert np.array_equal(result.labels, kmeans(unit([x]), 12, generator(0)).labels)


@pytest.mark.parametrize("k", [0, 11])
def test_an_impossible_number_of_clusters_is_named(k):
    with pytest.raises(UserError, match=f"cannot form {k} clusters of 10 samples"):
        kmeans(unit([np.eye(10)]), k, generator(0))
