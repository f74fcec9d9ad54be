"""Integer noise on counts, drawn exactly: discrete Laplace and discrete Gaussian from random integers alone.

No floating-point number takes part in a draw, so the low bits of an answer tell nothing and the distribution is the one
that the accountant counts. The method is that of Canonne, Kamath and Steinke (2020).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from cofal.errors import UserError

# Gives that many random bytes: `secrets.token_bytes`, a numpy generator's `bytes`, `masks.byte_source`.
Draw = Callable[[int], bytes]

LAPLACE, GAUSSIAN = "laplace", "gaussian"
LARGEST = 10_000  # parameter: noise far above any count is a slip of the pen, and slow to account for


def noisy(counts: np.ndarray, mechanism: str, parameter: float, draw: Draw = secrets.token_bytes) -> np.ndarray:
    """int32 `counts` with independent noise on each; values may become negative, which keeps sums unbiased."""
    sample = {LAPLACE: discrete_laplace, GAUSSIAN: discrete_gaussian}.get(mechanism)
    if sample is None:
        raise UserError(f"unknown noise {mechanism!r}; known: {LAPLACE}, {GAUSSIAN}")
    limits = np.iinfo(np.int32)
    moved = counts.astype(np.int64) + sample(parameter, counts.size, draw).reshape(counts.shape)
    fitting: np.ndarray = np.clip(moved, limits.min, limits.max).astype(np.int32)
    return fitting


def discrete_laplace(scale: float, size: int, draw: Draw = secrets.token_bytes) -> np.ndarray:
    """(size,) int64 with P(k) proportional to exp(-|k| / scale); one count under it is (1 / scale)-private."""
    dice, exact = _Dice(draw), _checked(scale)
    return np.array([_laplace(dice, exact) for _ in range(size)], dtype=np.int64)


def discrete_gaussian(sigma: float, size: int, draw: Draw = secrets.token_bytes) -> np.ndarray:
    """(size,) int64 with P(k) proportional to exp(-k^2 / (2 sigma^2)); one count under it is 1/(2 sigma^2)-zCDP."""
    dice, exact = _Dice(draw), _checked(sigma)
    return np.array([_gaussian(dice, exact) for _ in range(size)], dtype=np.int64)


class _Dice:
    """Uniform integers and exact coin flips from random bytes."""

    def __init__(self, draw: Draw):
        self._draw, self._bytes, self._used = draw, b"", 0

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound)."""
        bits = (bound - 1).bit_length()
        size = (bits + 7) // 8
        while True:
            if self._used + size > len(self._bytes):
                self._bytes, self._used = self._draw(max(1024, size)), 0
            value = int.from_bytes(self._bytes[self._used : self._used + size], "little") & ((1 << bits) - 1)
            self._used += size
            if value < bound:
                return value

    def exp_minus(self, top: int, bottom: int) -> bool:
        """True with probability exp(-top / bottom), for top >= 0 and bottom > 0."""
        whole, rest = divmod(top, bottom)
        return all(self._exp_minus_fraction(1, 1) for _ in range(whole)) and self._exp_minus_fraction(rest, bottom)

    def _exp_minus_fraction(self, top: int, bottom: int) -> bool:
        # The run of successes with chances x, x/2, x/3, ... is of even length with probability exp(-x), x <= 1.
        run = 1
        while self.below(bottom * run) < top:
            run += 1
        return run % 2 == 1


def _laplace(dice: _Dice, scale: Fraction) -> int:
    top, bottom = scale.numerator, scale.denominator
    while True:
        # A geometric number with ratio exp(-1 / top): its remainder and its quotient by top, each drawn alone.
        remainder = dice.below(top)
        if not dice.exp_minus(remainder, top):
            continue
        quotient = 0
        while dice.exp_minus(1, 1):
            quotient += 1
        size = (remainder + top * quotient) // bottom
        negative = dice.below(2) == 1
        if negative and size == 0:
            continue  # zero must not count twice
        return -size if negative else size


def _gaussian(dice: _Dice, sigma: Fraction) -> int:
    """A Laplace draw of width w, kept with probability exp(-(|k| - sigma^2 / w)^2 / (2 sigma^2))."""
    width = math.floor(sigma) + 1
    top, bottom = sigma.numerator**2, sigma.denominator**2
    divisor = 2 * top * bottom * width**2
    while True:
        value = _laplace(dice, Fraction(width))
        if dice.exp_minus((abs(value) * bottom * width - top) ** 2, divisor):
            return value


def _checked(parameter: float) -> Fraction:
    if not 0 < parameter <= LARGEST:  # refuses NaN as well
        raise UserError(f"noise parameter {parameter} must be above 0 and at most {LARGEST}; 1 to 100 is usual")
    return Fraction(parameter)
