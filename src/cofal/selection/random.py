"""Random picks under client budgets: the yardstick."""

from __future__ import annotations

import numpy as np

from cofal.selection.greedy import Quota
from cofal.selection.kmeans import content_hash
from cofal.selection.pool import Budgets, Pool


def random(pool: Pool, budgets: Budgets, rng: np.random.Generator) -> np.ndarray:
    """Rows in random order, each taken while its client has budget left, (budget,) int64.

    A row's place in the order depends on its values alone, so the order of clients and samples changes nothing; copies
    of one row are told apart by their number, so that they do not come in a bunch.
    """
    hashes = content_hash(pool, rng)
    by_hash = np.argsort(hashes, kind="stable")
    same = np.r_[False, hashes[by_hash][1:] == hashes[by_hash][:-1]]
    start = np.maximum.accumulate(np.where(same, 0, np.arange(pool.n)))
    copy = np.empty(pool.n, dtype=np.uint64)
    copy[by_hash] = (np.arange(pool.n) - start).astype(np.uint64)
    key = (hashes ^ (copy * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    key ^= key >> np.uint64(31)
    quota = Quota(pool, budgets)
    rows = []
    for row in np.argsort(key, kind="stable"):
        if quota.mask[row]:
            quota.take(int(row))
            rows.append(row)
            if len(rows) == budgets.total:
                break
    return np.array(rows, dtype=np.int64)
