"""How far an embedding blurs differences of kind: the overlap that clearly different rows show all the same.

Overlap is measured in cells, and cells of a blurred embedding hold rows of many kinds, so that even clients without a
common kind of image overlap. How much is found without labels: two halves of the coordinates are two views of the same
rows. Groups that one view tells apart stand for kinds; their overlap in cells of the other view is what cannot be told.
It serves where only aggregates are at hand: features of a poor encoder agree with each other more than with the kinds,
and then it tells too little. Who sees embeddings looks at neighbours instead (`closeness.py`).
"""

from __future__ import annotations

import numpy as np

from cofal.selection.kmeans import kmeans, some_rows
from cofal.selection.overlap import CELLS, mean_of_pairs, overlap_matrix
from cofal.selection.pool import Pool

KINDS = 10
HALVINGS = 6  # of the coordinates, averaged: one alone is off by 0.08 on a blurred embedding, their mean by 0.03
SAMPLE = 2000  # rows that stand for larger pools
_ROWS_PER_KIND = 12
_FEWEST_COORDINATES = 4  # halves of fewer say nothing
MOST = 0.9  # beyond, no overlap would be clear


def blur(pool: Pool, rng: np.random.Generator) -> float:
    """The overlap of groups found in one half of the coordinates, measured in cells of the other half; 0 to 0.9."""
    pool = some_rows(pool, SAMPLE, rng)
    kinds, cells = (min(most, pool.n // _ROWS_PER_KIND) for most in (KINDS, CELLS))
    if pool.d < _FEWEST_COORDINATES or kinds < 2:
        return 0.0
    rows = pool.tile(0, pool.n).cpu().numpy()
    return float(np.clip(np.mean([_once(rows, kinds, cells, rng) for _ in range(HALVINGS)]), 0, MOST))


def _once(rows: np.ndarray, kinds: int, cells: int, rng: np.random.Generator) -> float:
    """The mean overlap of `kinds` groups of one half of the coordinates of `rows` (n, d) in `cells` of the other."""
    half = rows.shape[1] // 2
    order = rng.permutation(rows.shape[1])
    kind = kmeans(_view(rows[:, order[:half]]), kinds, rng).labels
    cell = kmeans(_view(rows[:, order[half:]]), cells, rng).labels
    counts = np.zeros((kinds, cells), np.int64)
    np.add.at(counts, (kind, cell), 1)
    return float(mean_of_pairs(overlap_matrix(counts)))


def _view(part: np.ndarray) -> Pool:
    """A pool of some of the coordinates; rows that are zero in all of them get one direction of their own."""
    empty = np.linalg.norm(part, axis=1) < 1e-12
    return Pool([np.where(empty[:, None], 1.0, part)])
