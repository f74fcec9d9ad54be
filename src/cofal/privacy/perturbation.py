"""Noise on unit embeddings that keeps them on the sphere and moves each by a chosen expected distance.

Here are the choice of a mechanism, its calibration by that distance, its source of randomness, and the paper's own
mechanism; the one with a proof is in `directional`.
"""

from __future__ import annotations

import difflib
import math
import secrets
from numbers import Real

import numpy as np

from cofal.errors import UserError
from cofal.privacy.directional import concentration, mean_cosine, von_mises_fisher
from cofal.rng import generator

MECHANISMS = {
    "tangent": "the paper's Gaussian noise in the tangent space; no formal guarantee",
    "vmf": "von Mises-Fisher noise; metric differential privacy",
}
_ROWS = 8192  # rows perturbed at a time, so that a large set needs no second copy in float64
_UNIT = 1e-3  # how far from 1 a length may be: half-precision rows are off by up to half of it


def noise_stream(seed: int | None, *names: object) -> np.random.Generator:
    """The stream of a client's noise: from the operating system's cryptographic source, or, if asked, from a seed.

    Whoever knows the seed can compute the noise and take it off again, so a seed is for experiments; a deployment gives
    None.
    """
    if seed is not None:
        return generator(seed, *names)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(secrets.randbits(256))))


def noise_scale(epsilon: float) -> float:
    """sigma, the root-mean-square length of tangent noise that moves a unit vector by `epsilon` after normalisation.

    From epsilon^2 = 2 - 2 / sqrt(1 + sigma^2), for 0 <= epsilon < sqrt(2).
    """
    number = isinstance(epsilon, Real) and not isinstance(epsilon, bool)
    if not (number and 0 <= epsilon < math.sqrt(2)):
        raise UserError(
            f"epsilon = {epsilon!r} must be a number of at least 0 and below sqrt(2) = 1.414; 0.6 is a usual choice"
        )
    return math.sqrt(1 / (1 - epsilon**2 / 2) ** 2 - 1)


def perturb(embeddings: np.ndarray, epsilon: float, rng: np.random.Generator, mechanism: str = "tangent") -> np.ndarray:
    """(n, d) float32: unit rows moved on the sphere by random noise, by `epsilon` on average.

    tangent: Gaussian noise in a row's tangent space, brought back to the sphere; the mean distance is `epsilon` sharply
    for large d. vmf: a draw around the row whose mean distance is `epsilon` exactly, with the guarantee `privacy_loss`.
    Rows of `embeddings` must have unit length, up to the rounding of half precision; others are refused, since neither
    `epsilon` nor the guarantee would hold for them. epsilon = 0 returns rows unchanged.
    """
    check_mechanism(mechanism)
    scale = noise_scale(epsilon)
    _check_rows(embeddings)
    n, d = embeddings.shape
    if scale == 0:
        return np.array(embeddings, dtype=np.float32)
    if d < 2:
        raise UserError(f"embeddings of dimension {d} have no tangent space to perturb; use at least 2 dimensions")
    if mechanism == "vmf":
        return von_mises_fisher(embeddings, concentration(epsilon, d), rng)
    moved = np.empty((n, d), dtype=np.float32)
    for start in range(0, n, _ROWS):
        x = np.asarray(embeddings[start : start + _ROWS], dtype=np.float64)
        noise = rng.standard_normal(x.shape)
        noise -= np.sum(noise * x, axis=1, keepdims=True) * x
        y = x + scale / math.sqrt(d - 1) * noise
        moved[start : start + _ROWS] = y / np.linalg.norm(y, axis=1, keepdims=True)
    return moved


def _check_rows(embeddings: np.ndarray) -> None:
    if embeddings.ndim != 2:
        raise UserError(f"embeddings of shape {embeddings.shape} are not rows; give an array of shape (n, d)")
    for start in range(0, len(embeddings), _ROWS):
        length = np.linalg.norm(np.asarray(embeddings[start : start + _ROWS], dtype=np.float64), axis=1)
        wrong = ~(np.abs(length - 1) <= _UNIT)  # NaN, too
        if wrong.any():
            row = int(wrong.argmax())
            if not np.isfinite(length[row]):
                raise UserError(f"row {start + row} of the embeddings holds NaN or infinity; embed that image anew")
            raise UserError(
                f"row {start + row} of the embeddings has length {length[row]:.4g}, not 1; "
                "divide every row by its length first"
            )


def privacy_loss(epsilon: float, d: int, mechanism: str) -> float:
    """Privacy loss per unit of distance: the log-likelihood ratio between two rows r apart is at most this times r.

    kappa for vmf (infinite without noise). Infinite for tangent, whose noise comes with no such bound.
    """
    check_mechanism(mechanism)
    noise_scale(epsilon)
    return concentration(epsilon, d) if mechanism == "vmf" else math.inf


def kept_cosine(epsilon: float, d: int, mechanism: str) -> float:
    """E <x, y> between a unit row and its noised image; noised images of two rows keep its square of their cosine."""
    check_mechanism(mechanism)
    noise_scale(epsilon)
    if mechanism == "vmf" and epsilon > 0:
        return mean_cosine(concentration(epsilon, d), d)
    return 1 - epsilon**2 / 2


def check_mechanism(mechanism: str) -> None:
    """Refuse a mechanism that is not known, naming the nearest."""
    if mechanism not in MECHANISMS:
        near = difflib.get_close_matches(str(mechanism), MECHANISMS, n=1, cutoff=0.0)
        known = ", ".join(MECHANISMS)
        raise UserError(f"unknown mechanism {mechanism!r}; did you mean {near[0]!r}? (known: {known})")
