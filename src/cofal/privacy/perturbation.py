"""Noise on unit embeddings that keeps them on the sphere and moves each by a chosen expected distance."""

from __future__ import annotations

import math

import numpy as np

from cofal.errors import UserError

_ROWS = 8192  # rows perturbed at a time, so that a large set needs no second copy in float64


def noise_scale(epsilon: float) -> float:
    """sigma, the root-mean-square length of tangent noise that moves a unit vector by `epsilon` after normalisation.

    From epsilon^2 = 2 - 2 / sqrt(1 + sigma^2), for 0 <= epsilon < sqrt(2).
    """
    if not 0 <= epsilon < math.sqrt(2):
        raise UserError(f"epsilon = {epsilon} must be at least 0 and below sqrt(2) = 1.414; 0.6 is a usual choice")
    return math.sqrt(1 / (1 - epsilon**2 / 2) ** 2 - 1)


def perturb(embeddings: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """(n, d) float32: unit rows moved by Gaussian noise in their tangent space and brought back to the sphere.

    The expected distance between a row and its image is `epsilon` (sharply so for large d). Rows of `embeddings`
    must have unit length; epsilon = 0 returns them unchanged.
    """
    scale = noise_scale(epsilon)
    n, d = embeddings.shape
    if scale == 0:
        return np.array(embeddings, dtype=np.float32)
    if d < 2:
        raise UserError(f"embeddings of dimension {d} have no tangent space to perturb; use at least 2 dimensions")
    moved = np.empty((n, d), dtype=np.float32)
    for start in range(0, n, _ROWS):
        x = np.asarray(embeddings[start : start + _ROWS], dtype=np.float64)
        noise = rng.standard_normal(x.shape)
        noise -= np.sum(noise * x, axis=1, keepdims=True) * x
        y = x + scale / math.sqrt(d - 1) * noise
        moved[start : start + _ROWS] = y / np.linalg.norm(y, axis=1, keepdims=True)
    return moved
