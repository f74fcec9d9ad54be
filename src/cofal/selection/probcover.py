"""ProbCover: greedy maximum of the number of rows within distance delta of a pick."""

from __future__ import annotations

import numpy as np

from cofal.errors import UserError
from cofal.selection.coverage import MEMORY_LIMIT, KernelCoverage
from cofal.selection.greedy import Quota, greedy
from cofal.selection.kernels import make_kernel
from cofal.selection.pool import Budgets, Picked, Pool
from cofal.selection.radius import estimate_radius


def probcover(
    pool: Pool,
    budgets: Budgets,
    rng: np.random.Generator,
    *,
    delta: float | str = 0.75,
    memory_limit: int = MEMORY_LIMIT,
) -> Picked:
    """Rows in the order picked; `delta` is the radius between unit rows, or "auto" to estimate it from the pool."""
    if isinstance(delta, str):
        if delta != "auto":
            raise UserError(f"delta = {delta!r} is neither a number nor 'auto'")
        delta = estimate_radius(pool, rng)
    kernel = make_kernel("tophat", pool.d, 1.0, delta)
    return greedy(KernelCoverage(pool, kernel, memory_limit), Quota(pool, budgets))
