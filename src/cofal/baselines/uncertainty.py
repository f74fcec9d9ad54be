"""Scores of uncertainty, and the picks of clients that go by a score: what S-AL and F-AL share.

Entropy: Wang and Shang 2014. Least confidence: Lewis and Gale, SIGIR 1994. Margin: Scheffer et al. 2001.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cofal.baselines.playing import Order, Turn, free_rows, interleave


def entropy(p: np.ndarray) -> np.ndarray:
    """(n,) of probabilities (n, classes), in nats."""
    return -(p * np.log(np.maximum(p, np.finfo(p.dtype).tiny))).sum(axis=1)


def least_confidence(p: np.ndarray) -> np.ndarray:
    """(n,) one minus the largest probability."""
    return 1 - p.max(axis=1)


def margin(p: np.ndarray) -> np.ndarray:
    """(n,) minus the lead of the first class over the second."""
    if p.shape[1] < 2:
        return np.zeros(len(p), p.dtype)
    top = np.partition(p, -2, axis=1)
    return top[:, -2] - top[:, -1]


SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "entropy": entropy,
    "least-confidence": least_confidence,
    "margin": margin,
}


def highest(turn: Turn, score: Callable[[int, np.ndarray], np.ndarray]) -> Order:
    """Each client's free rows of the highest `score(client, positions)`; ties to the lowest position."""
    lists: list[list[int]] = []
    for client, wanted in enumerate(turn.wanted):
        if not wanted:
            lists.append([])
            continue
        rows = free_rows(turn, client)
        lists.append(rows[np.argsort(-score(client, rows), kind="stable")[:wanted]].tolist())
    return interleave(lists)
