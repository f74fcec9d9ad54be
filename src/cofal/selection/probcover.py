"""ProbCover: greedy maximum of the number of rows within distance delta of a pick."""

from __future__ import annotations

import math

import numpy as np

from cofal.selection.approx import cover
from cofal.selection.coverage import MEMORY_LIMIT
from cofal.selection.kernels import TopHat
from cofal.selection.numbers import checked_radius
from cofal.selection.pool import Budgets, Picked, Pool
from cofal.selection.radius import estimate_radius


def probcover(
    pool: Pool,
    budgets: Budgets,
    rng: np.random.Generator,
    *,
    delta: float | str = 0.75,
    correct_radius: bool = True,
    kept_cosine: float = 1.0,
    memory_limit: int = MEMORY_LIMIT,
    approx: bool | int = False,
    kinds: bool = False,
) -> Picked:
    """Rows in the order picked, with the number of rows that each newly covered.

    `delta` is the radius between unit rows (2 at most), or "auto" to estimate it from the pool. It is meant for rows
    without noise: where the pool's rows keep only the share `kept_cosine` of their cosine to the rows behind them, it
    is widened accordingly, unless `correct_radius` is False. `memory_limit` (bytes) never changes the picks; `approx`
    picks from a sample of the rows (True: of a size that suits; a number: of about that many rows).
    With `kinds` a row is worth what it covers of rows that are likely of its kind (`kind_coverage.py`).
    """
    delta = checked_radius(delta)
    if isinstance(delta, str):  # between the rows as they are, noise included
        delta = estimate_radius(pool, rng) if budgets.total else 0.0
    elif correct_radius and kept_cosine != 1:
        delta = noised_radius(delta, kept_cosine)
    return cover(pool, budgets, TopHat(delta, pool.d), rng, memory_limit, approx, kinds)


def noised_radius(delta: float, kept_cosine: float) -> float:
    """The distance between two noised rows, in the mean of its square, whose clean rows lie `delta` apart.

    Independent noises that each keep the share c of a row's cosine to itself keep c^2 of the cosine between two rows.
    """
    return math.sqrt(max(0.0, 2 - kept_cosine**2 * (2 - delta**2)))
