"""Core-set: Sener and Savarese, "Active Learning for Convolutional Neural Networks: A Core-Set Approach" (ICLR 2018),
by the greedy k-centre algorithm, as a selector of `cofal.select`: it runs centrally or at each client alone.
"""

from __future__ import annotations

import numpy as np

from cofal.selection.greedy import Quota
from cofal.selection.kmeans import content_hash
from cofal.selection.pool import Budgets, Pool


def core_set(pool: Pool, budgets: Budgets, rng: np.random.Generator) -> np.ndarray:
    """Rows in the order picked: each the feasible row farthest from all labelled and picked ones.

    With nothing labelled the first is drawn at random. Ties go to the lowest (client, position).
    """
    x = pool.tile(0, pool.n).cpu().numpy()
    nearest = np.full(pool.n, np.inf, dtype=np.float32)
    for labelled in np.flatnonzero(pool.labeled).tolist():
        nearest = np.minimum(nearest, _squares(x, labelled))
    quota = Quota(pool, budgets)
    first = np.argsort(content_hash(pool, rng), kind="stable")
    picks: list[int] = []
    for _ in range(budgets.total):
        if np.isinf(nearest[0]):
            row = int(first[quota.mask[first]][0])
        else:
            row = int(np.where(quota.mask, nearest, -np.inf).argmax())
        quota.take(row)
        picks.append(row)
        nearest = np.minimum(nearest, _squares(x, row))
    return np.array(picks, dtype=np.int64)


def _squares(x: np.ndarray, row: int) -> np.ndarray:
    """(n,) squared distances of unit rows to one of them."""
    squares: np.ndarray = np.maximum(2 - 2 * (x @ x[row]), 0)
    return squares
