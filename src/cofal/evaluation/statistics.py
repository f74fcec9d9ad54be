"""What a few seeds say: mean, standard error, confidence interval, and paired comparison of two systems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t: P(T <= t), and its inverse; scipy.stats is slow to import

from cofal.errors import UserError


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds. With one value the error and the interval are unknown: nan, and the whole line."""

    mean: float
    standard_error: float
    low: float  # confidence interval of the mean, by Student's t
    high: float
    n: int


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean and two-sided confidence interval of `values`, one per seed, taken as independent."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0:
        raise UserError(f"an estimate needs a list of numbers, one per seed, not an array of shape {x.shape}")
    if not 0 < confidence < 1:
        raise UserError(f"confidence = {confidence} must lie between 0 and 1, such as 0.95")
    mean = float(x.mean())
    if len(x) == 1:
        return Estimate(mean, math.nan, -math.inf, math.inf, 1)
    error = float(x.std(ddof=1) / math.sqrt(len(x)))
    reach = error * float(stdtrit(len(x) - 1, (1 + confidence) / 2))
    return Estimate(mean, error, mean - reach, mean + reach, len(x))


@dataclass(frozen=True)
class Comparison:
    """First minus second, paired by seed."""

    difference: Estimate
    p_value: float  # two-sided, of Student's paired t-test; nan with one seed

    @property
    def significant(self) -> bool:
        """Does the interval of the difference leave out zero?"""
        return self.difference.low > 0 or self.difference.high < 0


def compare(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Comparison:
    """Do two systems differ, seed by seed? Number i of both must come from the same seed and split."""
    if len(first) != len(second):
        raise UserError(f"a paired comparison needs as many values of both: {len(first)} and {len(second)}")
    difference = estimate(np.subtract(first, second).tolist(), confidence)
    if difference.n == 1:
        return Comparison(difference, math.nan)
    if difference.standard_error == 0:
        return Comparison(difference, 1.0 if difference.mean == 0 else 0.0)
    statistic = abs(difference.mean) / difference.standard_error
    return Comparison(difference, float(2 * stdtr(difference.n - 1, -statistic)))
