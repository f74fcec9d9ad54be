"""MaxHerding: greedy maximum of kernel coverage, the sum over rows x of the largest k(x, c) over picks c."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from cofal.selection.approx import cover
from cofal.selection.coverage import MEMORY_LIMIT
from cofal.selection.kernels import make_kernel
from cofal.selection.numbers import checked_lengthscale
from cofal.selection.pool import Budgets, Picked, Pool
from cofal.selection.probcover import noised_radius


def maxherding(
    pool: Pool,
    budgets: Budgets,
    rng: np.random.Generator,
    *,
    kernel: str | Callable[[torch.Tensor], torch.Tensor] = "gaussian",
    lengthscale: float = 1.0,
    correct_lengthscale: bool = True,
    kept_cosine: float = 1.0,
    memory_limit: int = MEMORY_LIMIT,
    approx: bool | int = False,
    kinds: bool = False,
) -> Picked:
    """Rows in the order picked, with their gains.

    With s the lengthscale and r the distance of unit rows, the kernel is gaussian: exp(-r^2 / s^2), laplace:
    exp(-r / s), cauchy: 1 / (1 + r^2 / s^2), tophat: 1 for r <= s, else 0 (this is ProbCover), or a function of yours
    that turns a tensor of squared distances into a tensor of values. The lengthscale is meant for rows without noise:
    where the pool's rows keep only the share `kept_cosine` of their cosine to the rows behind them, that of a gaussian
    or tophat kernel is corrected, unless `correct_lengthscale` is False. `memory_limit` (bytes) never changes the
    picks; `approx` picks from a sample of the rows (True: of a size that suits; a number: of about that many rows).
    With `kinds` a row is worth what it covers of rows that are likely of its kind (`kind_coverage.py`).
    """
    lengthscale = checked_lengthscale(lengthscale)
    if correct_lengthscale and kept_cosine != 1:
        lengthscale = fitted_lengthscale(kernel, lengthscale, kept_cosine)
    return cover(pool, budgets, make_kernel(kernel, pool.d, lengthscale), rng, memory_limit, approx, kinds)


def fitted_lengthscale(kernel: object, lengthscale: float, kept_cosine: float) -> float:
    """The lengthscale for noised rows; of kernels for which there is no such, the one that was given."""
    if kernel == "gaussian":
        return noised_lengthscale(lengthscale, kept_cosine)
    return noised_radius(lengthscale, kept_cosine) if kernel == "tophat" else lengthscale


def noised_lengthscale(lengthscale: float, kept_cosine: float) -> float:
    """The lengthscale at which a Gaussian kernel tells noised rows apart as it would tell the rows behind them.

    Independent noises that each keep the share c of a row's cosine to itself keep c^2 of the cosine x between two rows.
    The kernel is exp(2 x / s^2) up to a factor, and exp(2 c^2 x / (c s)^2) is the same.
    """
    return kept_cosine * lengthscale
