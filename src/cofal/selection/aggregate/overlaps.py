"""The coordinator's greedy over proposed balls, of which it knows counts alone: samples in each, and in each two."""

from __future__ import annotations

import numpy as np


def choose(
    gains: np.ndarray,
    overlaps: np.ndarray,
    levels: np.ndarray,
    clients: np.ndarray,
    left: np.ndarray,
    size: int,
    least: float = 1.0,
    rough: float = 0.0,
) -> tuple[list[int], np.ndarray]:
    """Up to `size` balls in the order chosen, and what every ball is expected to gain (M,) after them.

    gains (M,), overlaps (M, M): uncovered samples in each ball, in each two. The next ball is the one of the lowest
    level, then of the greatest gain, that is proposed by a client with labels left in `left`. What it takes away from
    another is taken as independent of what others took: the gain shrinks by the share in which the two balls overlap.
    Balls that are expected to gain less than `least` come after all others, whatever their level. Of those that overlap
    a chosen one none is taken for `rough` or less: overlaps may be told too small by as much, and nothing be left.
    """
    gains = gains.astype(np.float64)
    shares = np.divide(overlaps, gains, out=np.ones(overlaps.shape), where=gains > 0)  # [i, j]: of ball j that is in i
    room, expected = left.copy(), gains.copy()
    chosen: list[int] = []
    needed = np.ones(len(gains))  # expected gain below which a ball is not taken at all
    while len(chosen) < size:
        worth = np.where(room[clients] > 0, expected, 0.0)
        possible = worth >= least if (worth >= least).any() else worth >= needed
        if not possible.any():
            break
        lowest = possible & (levels == levels[possible].min())
        best = int(np.argmax(np.where(lowest, worth, 0.0)))
        chosen.append(best)
        room[clients[best]] -= 1
        expected *= 1 - np.minimum(shares[best], 1)
        needed[overlaps[best] > 0] = 1 + rough
        expected[best] = 0.0
    return chosen, expected


def batch_ends(total: int, batches: int) -> list[int]:
    """How many picks there are after each batch; batches grow evenly, as the first picks change the coverage most."""
    weights = np.cumsum(np.arange(1, batches + 1))
    return sorted({int(end) for end in np.ceil(weights * total / weights[-1] - 1e-9)})
