"""Ward's method on weighted points: groups merged two by two, each time those that then spread least more.

Why our own: the libraries' versions give every point the same weight, and a cell may stand for 5 samples or for 50.
"""

from __future__ import annotations

import numba
import numpy as np


def ward(points: np.ndarray, weights: np.ndarray, k: int) -> np.ndarray:
    """(m,) int64 which of `k` groups each of `points` (m, d), m >= k, of positive `weights` (m,), is in."""
    first = _merged(points @ points.T, weights.astype(np.float64), k)
    groups: np.ndarray = np.unique(first, return_inverse=True)[1]
    return groups


@numba.njit(cache=True)
def _merged(costs: np.ndarray, mass: np.ndarray, k: int) -> np.ndarray:
    """(m,) the first point of each point's group. Works in `costs`, the points' products (m, m), and `mass` (m,)."""
    m = len(mass)
    squares = np.diag(costs).copy()
    for i in range(m):
        for j in range(m):  # what merging the two adds to the spread
            costs[i, j] = (squares[i] + squares[j] - 2 * costs[i, j]) * mass[i] * mass[j] / (mass[i] + mass[j])
        costs[i, i] = np.inf
    group = np.arange(m)
    # With whom each group merges best, and at what cost; with that one it may have grown since, with none it is less.
    partner, least = np.empty(m, np.int64), np.empty(m)
    for i in range(m):
        partner[i] = costs[i].argmin()
        least[i] = costs[i, partner[i]]
    for _ in range(m - k):
        one = least.argmin()
        while costs[one, partner[one]] > least[one]:
            partner[one] = costs[one].argmin()
            least[one] = costs[one, partner[one]]
            one = least.argmin()
        other = partner[one]
        one, other = min(one, other), max(one, other)
        price, least[other] = costs[one, other], np.inf
        for i in range(m):
            if least[i] < np.inf and i != one:
                spread = (mass[i] + mass[one]) * costs[i, one] + (mass[i] + mass[other]) * costs[i, other]
                costs[i, one] = costs[one, i] = (spread - mass[i] * price) / (mass[i] + mass[one] + mass[other])
                if costs[i, one] <= least[i]:
                    partner[i], least[i] = one, costs[i, one]
            costs[i, other] = costs[other, i] = np.inf
        mass[one] += mass[other]
        group[group == other] = one
        partner[one] = costs[one].argmin()
        least[one] = costs[one, partner[one]]
    return group
