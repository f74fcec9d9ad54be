"""How far an embedding blurs differences of kind: the overlap that clearly different rows show all the same.

Overlap is measured in cells, and cells of a blurred embedding hold rows of many kinds, so that even clients without a
common kind of image overlap. How much is found without labels: two halves of the coordinates are two views of the same
rows. Groups that one view tells apart stand for kinds; their overlap in cells of the other view is what cannot be told.
"""

from __future__ import annotations

import numpy as np

from cofal.selection.kmeans import kmeans
from cofal.selection.overlap import CELLS, mean_of_pairs, overlap_matrix
from cofal.selection.pool import Pool

KINDS = 10
_ROWS_PER_KIND = 12
_FEWEST_COORDINATES = 4  # halves of fewer say nothing
MOST = 0.9  # beyond, no overlap would be clear


def blur(pool: Pool, rng: np.random.Generator) -> float:
    """The overlap of groups found in one half of the coordinates, measured in cells of the other half; 0 to 0.9."""
    kinds = min(KINDS, pool.n // _ROWS_PER_KIND)
    if pool.d < _FEWEST_COORDINATES or kinds < 2:
        return 0.0
    rows = pool.tile(0, pool.n).cpu().numpy()
    order = rng.permutation(pool.d)
    kind = kmeans(_view(rows[:, order[: pool.d // 2]]), kinds, rng).labels
    cells = min(CELLS, pool.n // _ROWS_PER_KIND)
    cell = kmeans(_view(rows[:, order[pool.d // 2 :]]), cells, rng).labels
    counts = np.zeros((kinds, cells), np.int64)
    np.add.at(counts, (kind, cell), 1)
    return float(np.clip(mean_of_pairs(overlap_matrix(counts)), 0, MOST))


def _view(part: np.ndarray) -> Pool:
    """A pool of some of the coordinates; rows that are zero in all of them get one direction of their own."""
    empty = np.linalg.norm(part, axis=1) < 1e-12
    return Pool([np.where(empty[:, None], 1.0, part)])
