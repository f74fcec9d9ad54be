"""ProbCover's radius from the embeddings alone: how far a ball may reach before it meets another cluster.

Both estimates look at the distance from each row to the nearest row of another k-means cluster: a ball is pure while
its radius is smaller. The ProbCover paper takes the largest radius at which 95 % of the balls are pure. That is too
careful where clusters touch, as they do in most embeddings: its balls hold a few near-duplicates, and picks follow
those. Picks lead to the best models where most balls have just met a neighbouring cluster (see docs/radius.md).
"""

from __future__ import annotations

import math

import numpy as np

from cofal.selection.kmeans import kmeans, some_rows
from cofal.selection.pool import Pool

CLUSTERS = 25  # more than most tasks have classes: a cluster then lies within a class
PURITY = 0.22  # share of balls still pure at the estimated radius
PAPER_PURITY = 0.95
SAMPLE = 2000  # rows looked at; distances to a nearest row depend on how many there are, so larger pools are thinned
WITHOUT_STRUCTURE = 0.5  # for a pool of one row, or of equal rows: any radius serves


def estimate_radius(pool: Pool, rng: np.random.Generator, clusters: int | None = None) -> float:
    """A radius at which ProbCover's picks are near the best in hindsight; needs no labels.

    `clusters`: how many k-means clusters to tell apart; default 25, fewer for pools under 250 rows.
    """
    return _radius_of_purity(pool, rng, clusters, PURITY)


def purity_radius(pool: Pool, rng: np.random.Generator, clusters: int | None = None) -> float:
    """The heuristic of the ProbCover paper: the largest radius at which 95 % of the balls lie within one cluster.

    `clusters` is the number of classes in the paper; without it, as in `estimate_radius`.
    """
    return _radius_of_purity(pool, rng, clusters, PAPER_PURITY)


def _radius_of_purity(pool: Pool, rng: np.random.Generator, clusters: int | None, purity: float) -> float:
    """The largest radius, in steps of 0.0001, at which a share `purity` of the balls lie within one cluster."""
    sample = some_rows(pool.in_memory(), SAMPLE, rng)
    k = min(clusters or min(CLUSTERS, max(2, pool.n // 10)), sample.n)
    other = np.sort(_distance_to_other_clusters(sample, kmeans(sample, k, rng).labels))
    limit = other[int((1 - purity) * len(other))]  # at this radius one ball too many is impure
    return math.ceil(limit * 1e4 - 1) / 1e4 if limit > 1e-4 and math.isfinite(limit) else WITHOUT_STRUCTURE


def _distance_to_other_clusters(unit: Pool, labels: np.ndarray) -> np.ndarray:
    """(n,) float64 distance from each row to the nearest row of another cluster; infinite if there is no other."""
    x = unit.tile(0, unit.n).cpu().double().numpy()
    nearest = np.empty(unit.n)
    for start in range(0, unit.n, 512):
        span = slice(start, start + 512)
        squares = 2 - 2 * x[span] @ x.T
        squares[labels[span, None] == labels] = np.inf
        nearest[span] = np.sqrt(np.maximum(squares.min(1), 0))
    return nearest
