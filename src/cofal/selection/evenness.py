"""Rows seen with their directions evened out, where a few directions hold nearly all of the variance.

Trained encoders often leave most of it in a few directions. A good one tells kinds apart by them, and rows lie in
clusters. In a weak one all kinds have them in common, and neighbours follow the few though many weak ones say as much.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from threadpoolctl import threadpool_limits

from cofal.rng import generator
from cofal.selection.kmeans import kmeans, some_rows, squared_distances
from cofal.selection.pool import Pool
from cofal.selection.remember import once_per_rows

HELD = 0.2  # of the directions hold the variance of an even embedding, at least
CLUSTERED = 1 / 3  # from this on the strong directions are those of clusters, and are left alone
MOST = 0.25  # power of a direction's variance by which it is divided, at most: variances become their square roots
SAMPLE, CLUSTERS_SAMPLE = 20_000, 2500  # rows of a larger pool by which directions are learnt, and clusters looked for
ROWS_PER_CLUSTER = 40
_FLOOR = 0.05  # of the mean variance, added to each: what is weaker is noise, and is not made strong
_HALVINGS = 30  # of the span in which the power is looked for
_TILE = 8192
_UNIT, _PLACES = 2.0**20, 2.0**18  # rows and axes are whole numbers of 2**-20, of 2**-18 where products of rows are
# added up: sums of products stay below 2**53 and so are exact, in whatever order threads and tiles add them

Principal = tuple[np.ndarray, np.ndarray, np.ndarray]  # middle (d,), variances (d,) along the axes, these (d, d)


@once_per_rows
def evened(pool: Pool) -> Pool:
    """The rows of `pool`, or their directions from the middle of all with its strong directions made weaker.

    (sum of variances)^2 / (sum of their squares) is how many directions hold the variance. Where they are fewer than
    `HELD` of all that there can be, and rows do not lie in clusters, every direction is divided by a power of its
    variance: the least that makes them as many, but no more than `MOST`. Else the rows are left as they are. What is
    labelled is not looked at, nor kept (`Pool.labeled_as`).
    """
    rng = generator(0, "evenness")
    sample = some_rows(pool.in_memory(), SAMPLE, rng)
    if sample.n < 2:
        return pool
    middle, variances, axes = found = principal(sample)
    floor, wanted = _FLOOR * variances.mean(), HELD * min(pool.d, sample.n - 1)
    if floor == 0 or held_by(variances) >= wanted:
        return pool
    if clustered(some_rows(sample, CLUSTERS_SAMPLE, rng), found, rng) >= CLUSTERED:
        return pool
    low, high = 0.0, MOST
    for _ in range(_HALVINGS):
        power = (low + high) / 2
        enough = held_by(variances * (variances + floor) ** (-2 * power)) >= wanted
        low, high = (low, power) if enough else (power, high)
    turned = axes * (variances + floor) ** -high
    turned = np.rint(turned * (_UNIT / np.abs(turned).max()))
    parts = [_turned(pool, start, stop, middle, turned) for start, stop in pairwise(pool.offsets.tolist())]
    return Pool(parts, device=str(pool.device))


def held_by(variances: np.ndarray) -> float:
    """How many directions hold the variance, from `variances` (d,) along each: d if all are equal, 1 if one has all."""
    return float(variances.sum() ** 2 / (variances**2).sum())


def clustered(pool: Pool, found: Principal, rng: np.random.Generator) -> float:
    """How much nearer rows are to the centres of their clusters than those of one Gaussian cloud, `found` in them.

    0 where there are no clusters, 1 where rows are copies of a few.
    """
    middle, variances, axes = found
    cloud = middle + (rng.normal(size=(pool.n, pool.d)) * np.sqrt(variances)) @ axes.T
    k = max(pool.n // ROWS_PER_CLUSTER, 1)
    spread = []
    for rows in (pool, Pool([cloud])):
        clusters = kmeans(rows, k, rng)
        spread.append(float(squared_distances(rows, clusters.labels, clusters.centers).mean()))
    return 1 - spread[0] / spread[1]


def principal(pool: Pool) -> Principal:
    """The middle (d,) of all rows, variances (d,) along the principal axes, ascending, and these as columns (d, d)."""
    sums, products = np.zeros(pool.d), np.zeros((pool.d, pool.d))
    for start in range(0, pool.n, _TILE):
        rows = np.rint(pool.tile(start, min(start + _TILE, pool.n)).cpu().double().numpy() * _PLACES)
        sums += rows.sum(0)
        products += rows.T @ rows
    middle = sums / pool.n
    with threadpool_limits(1):  # more threads, other last digits
        variances, axes = np.linalg.eigh((products / pool.n - np.outer(middle, middle)) / _PLACES**2)
    return middle / _PLACES, np.maximum(variances, 0), axes


def _turned(pool: Pool, start: int, stop: int, middle: np.ndarray, turned: np.ndarray) -> np.ndarray:
    """Unit rows (stop - start, d) float32: directions from `middle` along the columns of `turned` (d, d)."""
    found = np.empty((stop - start, pool.d), np.float32)
    for first in range(start, stop, _TILE):
        rows = pool.tile(first, min(first + _TILE, stop)).cpu().double().numpy()
        away = np.rint((rows - middle) * _UNIT) @ turned
        away[~away.any(axis=1), -1] = 1  # the middle itself: any direction, the same for all of them
        found[first - start : first - start + len(rows)] = away / np.linalg.norm(away, axis=1, keepdims=True)
    return found
