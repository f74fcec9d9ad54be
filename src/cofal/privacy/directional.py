"""Von Mises-Fisher noise on the unit sphere: the sampler, its mean cosine and displacement, and its guarantee.

A row x becomes y with density proportional to exp(kappa <x, y>). For any two rows x, x' and any set of outcomes the
probabilities then differ by a factor of at most exp(kappa ||x - x'||): metric (directional) differential privacy with
kappa per unit of distance. docs/privacy.md has the proof and what the number is worth.
"""

from __future__ import annotations

import math

import numpy as np

from cofal.errors import UserError

_ROWS = 8192  # rows drawn at a time, so that a large set needs no second copy in float64
_GRID = 4001  # points of the integral over the angle; the integrand is smooth and vanishes at both ends
_SPREADS = 12.0  # half-width of that integral, in standard deviations: what lies beyond is below rounding
LARGEST = 1e12  # concentration above which float32 rows no longer hold the noise faithfully


def von_mises_fisher(embeddings: np.ndarray, kappa: float, rng: np.random.Generator) -> np.ndarray:
    """(n, d) float32: each unit row replaced by a draw from the von Mises-Fisher law around it.

    kappa = 0 draws uniformly on the sphere, whatever the row; the larger it is, the nearer the draw. The draw is exact
    in law, up to floating point: the cosine to the row by rejection, the direction across it uniformly.
    """
    _check(kappa, embeddings.shape[1])
    moved = np.empty(embeddings.shape, dtype=np.float32)
    for start in range(0, len(embeddings), _ROWS):
        x = np.asarray(embeddings[start : start + _ROWS], dtype=np.float64)
        gap = sample_gaps(len(x), x.shape[1], kappa, rng)[:, None]
        across = rng.standard_normal(x.shape)
        across -= np.sum(across * x, axis=1, keepdims=True) * x
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        y = (1 - gap) * x + np.sqrt(gap * (2 - gap)) * across
        moved[start : start + _ROWS] = y / np.linalg.norm(y, axis=1, keepdims=True)
    return moved


def sample_gaps(n: int, d: int, kappa: float, rng: np.random.Generator) -> np.ndarray:
    """(n,) float64 draws of 1 - cosine between a row and its image.

    The cosine w has a density proportional to exp(kappa w) (1 - w^2)^((d - 3) / 2). Proposals are a symmetric beta
    variable sent through the Moebius map whose law has its mode where the target has (Ulrich's envelope, as corrected
    by Wood). All is computed for the gap 1 - w: near w = 1 the cosine itself would lose the digits that matter.
    """
    _check(kappa, d)
    m = d - 1
    b = m / (2 * kappa + math.hypot(2 * kappa, m))
    far = 2 * b / (1 + b)  # 1 - x0, with x0 = (1 - b) / (1 + b) the tangent point of the envelope
    found, have = np.empty(n), 0
    while have < n:
        wanted = n - have
        z = rng.beta(m / 2, m / 2, size=wanted)
        gap = 2 * b * z / ((1 - z) + b * z)
        ratio = kappa * (far - gap) + m * np.log((far + (1 - far) * gap) / (far * (2 - far)))
        kept = gap[ratio >= np.log(1 - rng.random(wanted))]  # 1 - u lies in (0, 1]
        found[have : have + len(kept)] = kept
        have += len(kept)
    return found


def mean_cosine(kappa: float, d: int) -> float:
    """E <x, y>, the mean resultant length: the ratio of modified Bessel functions I_{d/2}(kappa) / I_{d/2 - 1}(kappa).

    By the recurrence of the ratios from a high order downwards, in which errors die out; the functions themselves would
    overflow or vanish.
    """
    _check(kappa, d)
    if kappa == 0:
        return 0.0
    order = d / 2 - 1
    top = order + 200 + math.ceil(min(kappa, 2e4))
    ratio = kappa / (top + 0.5 + math.hypot(top + 1.5, kappa))  # Amos's bound, close already
    while top > order + 0.5:
        ratio = 1 / (2 * top / kappa + ratio)
        top -= 1
    return ratio


def mean_displacement(kappa: float, d: int) -> float:
    """E ||x - y||, the mean distance between a row and its image, by an integral over the angle between them."""
    _check(kappa, d)
    m = d - 1  # the angle t has a density proportional to exp(kappa cos t) sin(t)^(d - 2)
    cosine = 2 * kappa / ((m - 1) + math.hypot(m - 1, 2 * kappa)) if kappa else 0.0
    mode = math.acos(min(1.0, cosine))
    spread = 1 / math.sqrt(max(kappa * cosine + (m - 1) / max(1 - cosine**2, 1e-300), 1.0))
    low, high = max(0.0, mode - _SPREADS * spread), min(math.pi, mode + _SPREADS * spread)
    t = low + (high - low) * (np.arange(_GRID) + 0.5) / _GRID
    log_density = -2 * kappa * np.sin(t / 2) ** 2 + (m - 1) * np.log(np.sin(t))
    weight = np.exp(log_density - log_density.max())
    return float((2 * np.sin(t / 2) * weight).sum() / weight.sum())


def concentration(displacement: float, d: int) -> float:
    """kappa at which rows move by `displacement` on average: the inverse of `mean_displacement`, infinite at 0."""
    largest = mean_displacement(0.0, d)
    if not 0 <= displacement < largest:
        raise UserError(
            f"epsilon = {displacement} must be at least 0 and below {largest:.3f}, how far von Mises-Fisher noise "
            f"can move {d}-dimensional rows on average; 0.6 is a usual choice"
        )
    if displacement == 0:
        return math.inf
    if displacement < (least := mean_displacement(LARGEST, d)):
        raise UserError(f"epsilon = {displacement} is too small to draw; give 0 or at least {least:.1e}")
    low, high = math.log(1e-9), math.log(LARGEST)
    while high - low > 1e-12 * max(1.0, abs(high)):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_displacement(math.exp(middle), d) > displacement else (low, middle)
    return math.exp((low + high) / 2)


def _check(kappa: float, d: int) -> None:
    if d < 2:
        raise UserError(f"embeddings of dimension {d} have no directions to draw; use at least 2 dimensions")
    if not 0 <= kappa <= LARGEST:
        raise UserError(f"kappa = {kappa} must be a number from 0 to {LARGEST:g}; smaller is more private")
