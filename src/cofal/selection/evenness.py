"""Rows seen with their directions evened out, where a few directions hold nearly all of the variance.

Trained encoders often leave most of it in a few directions that all kinds have in common, and what tells kinds apart in
many weak ones. Neighbours and clusters then follow the few.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from threadpoolctl import threadpool_limits

from cofal.rng import generator
from cofal.selection.kmeans import content_hash
from cofal.selection.pool import Pool
from cofal.selection.remember import once_per_rows

HELD = 0.2  # of the directions hold the variance of an even embedding, at least
MOST = 0.25  # power of a direction's variance by which it is divided, at most: variances become their square roots
SAMPLE = 20_000  # rows of a larger pool from which the directions are learnt
_FLOOR = 0.05  # of the mean variance, added to each: what is weaker is noise, and is not made strong
_HALVINGS = 30  # of the span in which the power is looked for
_TILE = 8192
_UNIT, _PLACES = 2.0**20, 2.0**18  # rows and axes are whole numbers of 2**-20, of 2**-18 where products of rows are
# added up: sums of products stay below 2**53 and so are exact, in whatever order threads and tiles add them


@once_per_rows
def evened(pool: Pool) -> Pool:
    """The rows of `pool`, or their directions from the middle of all with its strong directions made weaker.

    (sum of variances)^2 / (sum of their squares) is how many directions hold the variance. Where they are fewer than
    `HELD` of all that there can be, every direction is divided by a power of its variance: the least that makes them
    as many, but no more than `MOST`. An even embedding is left as it is. Nothing is labelled in what is returned.
    """
    sample = pool.in_memory()
    if pool.n > SAMPLE:
        order = np.argsort(content_hash(sample, generator(0, "evenness")), kind="stable")
        sample = sample.subset(np.sort(order[:SAMPLE]))
    if sample.n < 2:
        return pool
    middle, variances, axes = _principal(sample)
    floor, wanted = _FLOOR * variances.mean(), HELD * min(pool.d, sample.n - 1)
    if floor == 0 or held_by(variances) >= wanted:
        return pool
    low, high = 0.0, MOST
    for _ in range(_HALVINGS):
        power = (low + high) / 2
        enough = held_by(variances * (variances + floor) ** (-2 * power)) >= wanted
        low, high = (low, power) if enough else (power, high)
    turned = axes * (variances + floor) ** -high
    turned = np.rint(turned * (_UNIT / np.abs(turned).max()))
    parts = [_turned(pool, start, stop, middle, turned) for start, stop in pairwise(pool.offsets.tolist())]
    return Pool(parts, device=str(pool.device))


def held_by(variances: np.ndarray) -> float:
    """How many directions hold the variance, from `variances` (d,) along each: d if all are equal, 1 if one has all."""
    return float(variances.sum() ** 2 / (variances**2).sum())


def _principal(pool: Pool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The middle (d,) of all rows, variances (d,) along the principal axes, ascending, and these as columns (d, d)."""
    sums, products = np.zeros(pool.d), np.zeros((pool.d, pool.d))
    for start in range(0, pool.n, _TILE):
        rows = np.rint(pool.tile(start, min(start + _TILE, pool.n)).cpu().double().numpy() * _PLACES)
        sums += rows.sum(0)
        products += rows.T @ rows
    middle = sums / pool.n
    with threadpool_limits(1):  # more threads, other last digits
        variances, axes = np.linalg.eigh((products / pool.n - np.outer(middle, middle)) / _PLACES**2)
    return middle / _PLACES, np.maximum(variances, 0), axes


def _turned(pool: Pool, start: int, stop: int, middle: np.ndarray, turned: np.ndarray) -> np.ndarray:
    """Unit rows (stop - start, d) float32: directions from `middle` along the columns of `turned` (d, d)."""
    found = np.empty((stop - start, pool.d), np.float32)
    for first in range(start, stop, _TILE):
        rows = pool.tile(first, min(first + _TILE, stop)).cpu().double().numpy()
        away = np.rint((rows - middle) * _UNIT) @ turned
        away[~away.any(axis=1), -1] = 1  # the middle itself: any direction, the same for all of them
        found[first - start : first - start + len(rows)] = away / np.linalg.norm(away, axis=1, keepdims=True)
    return found
