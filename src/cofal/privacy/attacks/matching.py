"""Attacks on noised embeddings by someone with candidate images and the public encoder: who is it, was it there?

Also the attack that a known seed allows: taking the noise off.
"""

from __future__ import annotations

import math

import numpy as np

from cofal.privacy.perturbation import kept_cosine, noise_scale

_TILE = 1024  # sent rows compared with all candidates at a time


def reidentification(sent: np.ndarray, candidates: np.ndarray, truth: np.ndarray) -> float:
    """Share of the sent rows (n, d) whose own image the attacker names among candidates (N, d) of unit length.

    `truth` (n,) is the candidate behind each row. The guess is the candidate of the largest cosine: under both kinds of
    noise the most likely one, as their densities rise with it. Chance is 1 / N.
    """
    right = 0
    for start in range(0, len(sent), _TILE):
        guess = (sent[start : start + _TILE] @ candidates.T).argmax(1)
        right += int((guess == truth[start : start + _TILE]).sum())
    return right / len(sent)


def membership_scores(
    sent: np.ndarray, candidates: np.ndarray, background: np.ndarray, epsilon: float, mechanism: str
) -> np.ndarray:
    """(N,) how strongly the sent rows (n, d) speak for each candidate (N, d) having been among their sources.

    Log-likelihood ratio of the best-matching sent row: from this candidate plus noise, or from another image of the
    same kind, whose law is a Gaussian fitted to the embeddings `background` of the attacker's own images.
    """
    d = sent.shape[1]
    kept = kept_cosine(epsilon, d, mechanism)
    spread = max(1 - kept**2, 1e-6) / d  # variance of the noise in a coordinate; a little where there is none
    strange = _surprise(sent, background, kept, spread)  # (n,) minus log density under "another image"
    best = np.full(len(candidates), -np.inf)
    for start in range(0, len(sent), _TILE):
        span = slice(start, start + _TILE)
        squared = 1 + kept**2 - 2 * kept * sent[span] @ candidates.T
        ratio = strange[span, None] - squared / (2 * spread) - d / 2 * math.log(spread)
        best = np.maximum(best, ratio.max(0))
    return best


def _surprise(sent: np.ndarray, background: np.ndarray, kept: float, spread: float) -> np.ndarray:
    """Minus the log density of noised rows whose clean rows follow the Gaussian of `background`, up to a constant."""
    mean = kept * background.mean(0, dtype=np.float64)
    covariance = kept**2 * np.cov(background.T.astype(np.float64))
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0) + spread
    along = (sent - mean) @ vectors
    total: np.ndarray = (along**2 / values).sum(1) / 2 + np.log(values).sum() / 2
    return total


def without_noise(sent: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """(n, d) float64 the clean rows behind `perturb(rows, epsilon, rng)`, from `rng` in the same state: why a seed that
    the server knows protects nothing.

    With g the noise before projection and s its scale, r y = (1 - s a) x + s g, where a = <g, x> and
    r^2 = 1 + s^2 (|g|^2 - a^2). The product with g is an equation in a alone; Newton's method finds the root near 0,
    the right one unless the noise is much longer than the row in few dimensions.
    """
    n, d = sent.shape
    scale = noise_scale(epsilon) / math.sqrt(d - 1)
    if scale == 0:
        return sent.astype(np.float64)
    g = rng.standard_normal((n, d))
    y = sent.astype(np.float64)
    length, product = (g * g).sum(1), (g * y).sum(1)
    a = np.zeros(n)
    for _ in range(50):
        r = np.sqrt(np.maximum(1 + scale**2 * (length - a**2), 1e-12))
        value = r * product - a + scale * a**2 - scale * length
        slope = -(scale**2) * a / r * product - 1 + 2 * scale * a
        a -= value / slope
    r = np.sqrt(np.maximum(1 + scale**2 * (length - a**2), 1e-12))
    x = r[:, None] * y - scale * g
    clean: np.ndarray = x / np.linalg.norm(x, axis=1, keepdims=True)
    return clean


def area_under_roc(members: np.ndarray, others: np.ndarray) -> float:
    """Probability that a member's score is above that of an outsider, ties counting half: 0.5 is guessing."""
    order = np.sort(others)
    below = np.searchsorted(order, members, side="left") + np.searchsorted(order, members, side="right")
    return float(below.mean() / (2 * len(others)))


def found_at(members: np.ndarray, others: np.ndarray, false_alarms: float = 0.01) -> float:
    """Share of the members recognised when at most a share `false_alarms` of the outsiders is taken for members."""
    bar = np.sort(others)[::-1][int(false_alarms * len(others))]
    return float((members > bar).mean())
