"""Selection from a sample of the rows with the loss measured, and the greedy kernel coverage that uses it."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import torch

from cofal.errors import UserError
from cofal.selection.coverage import KernelCoverage
from cofal.selection.greedy import Quota, greedy
from cofal.selection.kernels import Kernel
from cofal.selection.kind_coverage import KindCoverage
from cofal.selection.kinds import kindred
from cofal.selection.kmeans import content_hash
from cofal.selection.pool import Budgets, Picked, Pool

SAMPLE = 131_072  # rows that stand for a larger pool
CHECK = 50_000  # rows that exact picks are made from for comparison, and as many others on which both are measured
_SERIAL = 2048  # rows up to which waking threads costs more than they do
_TILE = 8192


def cover(
    pool: Pool,
    budgets: Budgets,
    kernel: Kernel,
    rng: np.random.Generator,
    memory_limit: int,
    approx: bool | int,
    kinds: bool = False,
) -> Picked:
    """The greedy picks of largest kernel coverage, with `kinds` of rows of each pick's kind (`kind_coverage.py`).

    `approx` is False (exact), True (picks come from `SAMPLE` rows) or another number of such rows; pools of no more
    rows are covered exactly.
    """
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, int | np.integer) or memory_limit <= 0:
        raise UserError(f"memory_limit = {memory_limit!r} is not a number of bytes above 0")
    size = sample_size(approx)
    if budgets.total == 0:
        return Picked(np.empty(0, np.int64), np.empty(0), coverage_loss=0.0 if size else None)
    if not size or size >= pool.n:
        exact = _exactly(pool, budgets, kernel, memory_limit, kinds)
        return Picked(exact.rows, exact.gains, coverage_loss=0.0 if size else None)
    stand_ins = sampled(pool, budgets, size, rng)
    inner = _exactly(pool.subset(stand_ins), budgets, kernel, memory_limit, kinds)
    picks = stand_ins[inner.rows]
    loss = coverage_loss(
        pool, budgets, picks, kernel, rng, lambda part, each: _exactly(part, each, kernel, memory_limit, kinds)
    )
    gains = None if inner.gains is None else inner.gains * (pool.n / len(stand_ins))
    return Picked(picks, gains, coverage_loss=loss)


def sample_size(approx: bool | int) -> int:
    """Rows to pick from: 0 means all of them, `SAMPLE` stands for True; what is no number of rows is refused."""
    if not isinstance(approx, bool | int | np.integer) or approx < 0:
        raise UserError(f"approx = {approx!r} is neither true or false nor a number of rows")
    return SAMPLE if approx is True else int(approx)


def coverage_loss(
    pool: Pool,
    budgets: Budgets,
    picks: np.ndarray,
    kernel: Kernel,
    rng: np.random.Generator,
    exactly: Callable[[Pool, Budgets], Picked],
) -> float:
    """1 - coverage of `picks` / coverage of exact picks, at least 0; 0 where those cover nothing either.

    The exact picks are those of the whole pool, or of up to `CHECK` rows of a larger one; both are then measured on as
    many other rows: on the rows that they were fitted to, exact picks look better than they are for the pool.
    """
    order = np.argsort(content_hash(pool, rng), kind="stable")
    half = pool.n if pool.n <= CHECK else min(CHECK, pool.n // 2)
    part = pool.subset(_enough_of_each_client(pool, budgets, order, half))
    judges = pool.subset(np.sort(order[-half:]))
    known = pool.rows(np.flatnonzero(pool.labeled))
    ours, exact = (torch.cat([rows, known]) for rows in (pool.rows(picks), part.rows(exactly(part, budgets).rows)))
    possible = _coverage(judges, kernel, exact)
    return max(0.0, 1 - _coverage(judges, kernel, ours) / possible) if possible > 0 else 0.0


def _exactly(pool: Pool, budgets: Budgets, kernel: Kernel, memory_limit: int, kinds: bool) -> Picked:
    if kinds:
        return greedy(KindCoverage(pool, kernel, kindred(pool), memory_limit), Quota(pool, budgets))
    threads = numba.get_num_threads()
    try:
        if pool.n <= _SERIAL:
            numba.set_num_threads(1)
        return greedy(KernelCoverage(pool, kernel, memory_limit), Quota(pool, budgets))
    finally:
        numba.set_num_threads(threads)


def sampled(pool: Pool, budgets: Budgets, size: int, rng: np.random.Generator) -> np.ndarray:
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


def _coverage(pool: Pool, kernel: Kernel, centers: torch.Tensor) -> float:
    """Sum over the pool's rows of the largest kernel value to one of `centers` (m, d)."""
    total = 0.0
    for start in range(0, pool.n, _TILE):
        tile = pool.tile(start, min(start + _TILE, pool.n))
        best = np.zeros(len(tile), dtype=np.float32)
        for first in range(0, len(centers), _TILE):
            np.maximum(best, kernel.tile(tile, centers[first : first + _TILE]).max(axis=1), out=best)
        total += float(best.sum(dtype=np.float64))
    return total
