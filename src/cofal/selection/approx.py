"""Greedy kernel coverage of a pool: exactly, or with picks from a sample of its rows and the loss measured."""

from __future__ import annotations

import numba
import numpy as np
import torch

from cofal.errors import UserError
from cofal.selection.balls import BYTES_PER_PAIR, BallLists, ball_sizes
from cofal.selection.coverage import LIST_SHARE, KernelCoverage
from cofal.selection.greedy import Quota, greedy
from cofal.selection.kernels import Kernel, TopHat
from cofal.selection.kmeans import content_hash
from cofal.selection.pool import Budgets, Picked, Pool

PROBE = 16_384  # rows that tell how many rows a ball holds
CHECK = 50_000  # rows, drawn anew, on which the loss is measured
_SERIAL = 2048  # rows up to which waking threads costs more than they do
_TILE = 8192


def cover(
    pool: Pool,
    budgets: Budgets,
    kernel: Kernel,
    rng: np.random.Generator,
    memory_limit: int,
    approx: bool | int,
    sample: int,
) -> Picked:
    """The greedy picks of largest kernel coverage.

    `approx` is False (exact), True (picks come from `sample` rows) or another number of such rows; pools of no more
    rows are covered exactly.
    """
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, int | np.integer) or memory_limit <= 0:
        raise UserError(f"memory_limit = {memory_limit!r} is not a number of bytes above 0")
    if not isinstance(approx, bool | int | np.integer) or approx < 0:
        raise UserError(f"approx = {approx!r} is neither true or false nor a number of rows")
    size = sample if approx is True else int(approx)
    if not size or size >= pool.n:
        exact = _exactly(pool, budgets, kernel, memory_limit)
        return Picked(exact.rows, exact.gains, coverage_loss=0.0 if size else None)
    if isinstance(kernel, TopHat):
        picked = _by_sampled_balls(pool, budgets, kernel, rng, memory_limit, size)
    else:
        picked = _of_sampled_points(pool, budgets, kernel, rng, memory_limit, size)
    check = pool.subset(_sample(pool, budgets, min(CHECK, pool.n), rng))
    rival = _exactly(check, budgets, kernel, memory_limit)
    loss = 1 - _coverage(check, kernel, pool.rows(picked.rows)) / _coverage(check, kernel, check.rows(rival.rows))
    return Picked(picked.rows, picked.gains, coverage_loss=max(0.0, loss))


def _of_sampled_points(
    pool: Pool, budgets: Budgets, kernel: Kernel, rng: np.random.Generator, memory_limit: int, size: int
) -> Picked:
    """The exact picks of a sample: a smooth kernel's coverage of a sample tells that of the pool."""
    stand_ins = _sample(pool, budgets, size, rng)
    inner = _exactly(pool.subset(stand_ins), budgets, kernel, memory_limit)
    gains = None if inner.gains is None else inner.gains * (pool.n / len(stand_ins))
    return Picked(stand_ins[inner.rows], gains)


def _by_sampled_balls(
    pool: Pool, budgets: Budgets, ball: TopHat, rng: np.random.Generator, memory_limit: int, size: int
) -> Picked:
    """The greedy picks among `size` candidates, drawn in proportion to the rows in their balls, for the whole pool.

    The coverage is counted over all rows of the pool, or over as many as the lists of `memory_limit` bytes can hold:
    small balls hold too few rows of a sample to tell good ones from lucky ones, large balls do not need them all.
    """
    order = np.argsort(content_hash(pool, rng), kind="stable")
    hashes = content_hash(pool, rng)
    probe = pool.subset(np.sort(order[:PROBE]))
    sizes = ball_sizes(pool, probe, ball) + 1
    chance = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53  # 0 to 1
    lots = -np.log1p(-chance) / sizes  # the row of the least is drawn first
    stand_ins = _enough_of_each_client(pool, budgets, np.argsort(lots, kind="stable"), size)
    share = (sizes[stand_ins].sum() + 1) / (probe.n * len(stand_ins))  # of the pool in a candidate's ball
    fits = int(memory_limit * LIST_SHARE) // BYTES_PER_PAIR / (1.1 * share * len(stand_ins))
    points = pool if fits >= pool.n else pool.subset(np.sort(order[: max(int(fits), 1)]))
    candidates = pool.subset(stand_ins)
    inner = greedy(BallLists(candidates, points, ball), Quota(candidates, budgets))
    gains = None if inner.gains is None else inner.gains * (pool.n / points.n)
    return Picked(stand_ins[inner.rows], gains)


def _exactly(pool: Pool, budgets: Budgets, kernel: Kernel, memory_limit: int) -> Picked:
    threads = numba.get_num_threads()
    try:
        if pool.n <= _SERIAL:
            numba.set_num_threads(1)
        return greedy(KernelCoverage(pool, kernel, memory_limit), Quota(pool, budgets))
    finally:
        numba.set_num_threads(threads)


def _sample(pool: Pool, budgets: Budgets, size: int, rng: np.random.Generator) -> np.ndarray:
    """About `size` rows (ascending), drawn by content."""
    return _enough_of_each_client(pool, budgets, np.argsort(content_hash(pool, rng), kind="stable"), size)


def _enough_of_each_client(pool: Pool, budgets: Budgets, order: np.ndarray, size: int) -> np.ndarray:
    """The first `size` rows of `order` (ascending), all labelled ones, and enough of each client for its budget."""
    chosen = pool.labeled.copy()
    chosen[order[:size]] = True
    free = order[~pool.labeled[order]]
    for client, budget in enumerate(budgets.per_client):
        mine = free[pool.owner[free] == client]
        chosen[mine[: 2 * budget]] = True  # twice, so that the last picks of a small client still have a choice
    return np.flatnonzero(chosen)


def _coverage(pool: Pool, kernel: Kernel, picks: torch.Tensor) -> float:
    """Sum over the pool's rows of the largest kernel value to a pick or a labelled row."""
    centers = torch.cat([picks, pool.rows(np.flatnonzero(pool.labeled))])
    total = 0.0
    for start in range(0, pool.n, _TILE):
        tile = pool.tile(start, min(start + _TILE, pool.n))
        best = np.zeros(len(tile), dtype=np.float32)
        for first in range(0, len(centers), _TILE):
            np.maximum(best, kernel.tile(tile, centers[first : first + _TILE]).max(axis=1), out=best)
        total += float(best.sum(dtype=np.float64))
    return total
