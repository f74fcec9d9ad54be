"""ProbCover: greedy maximum of the number of rows within distance delta of a pick."""

from __future__ import annotations

import math

import numpy as np

from cofal.errors import UserError
from cofal.selection.approx import cover
from cofal.selection.coverage import MEMORY_LIMIT
from cofal.selection.kernels import TopHat
from cofal.selection.pool import Budgets, Picked, Pool
from cofal.selection.radius import estimate_radius

# Rows that stand for larger pools in approximate mode: more than for MaxHerding, as a ball holds few rows of a sample.
SAMPLE = 262_144


def probcover(
    pool: Pool,
    budgets: Budgets,
    rng: np.random.Generator,
    *,
    delta: float | str = 0.75,
    memory_limit: int = MEMORY_LIMIT,
    approx: bool | int = False,
) -> Picked:
    """Rows in the order picked, with the number of rows that each newly covered.

    `delta` is the radius between unit rows (0 to 2), or "auto" to estimate it from the pool. `memory_limit` (bytes)
    never changes the picks; `approx` picks from a sample of the rows (True: of a size that suits; a number: of about
    that many rows).
    """
    if delta == "auto":
        delta = estimate_radius(pool, rng)
    if isinstance(delta, bool | str) or not 0 <= delta < math.inf:
        raise UserError(f"delta = {delta!r} is neither a distance between unit rows (0 to 2) nor 'auto'")
    return cover(pool, budgets, TopHat(delta, pool.d), rng, memory_limit, approx, SAMPLE)
