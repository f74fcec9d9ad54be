"""The definition of the greedy selectors in the plainest code: dense float64, every gain of every pick from scratch."""

from __future__ import annotations

import numpy as np

TIE = NOTHING = 1e-9


def unit_rows(embeddings: list[np.ndarray]) -> np.ndarray:
    x = np.concatenate([np.asarray(e, dtype=np.float64) for e in embeddings])
    return (x / np.sqrt((x * x).sum(axis=1, keepdims=True))).astype(np.float32).astype(np.float64)


def naive_greedy(embeddings, budgets, value, labeled=None):
    """(client, position) in picked order, and gains. `value` turns an array of squared distances into kernel values."""
    x = unit_rows(embeddings)
    n = len(x)
    k = np.array([value(((x[i] - x) ** 2).sum(axis=1)) for i in range(n)])
    owner = [client for client, e in enumerate(embeddings) for _ in range(len(e))]
    position = [p for e in embeddings for p in range(len(e))]
    given = set() if labeled is None else {(c, int(p)) for c, ps in enumerate(labeled) for p in ps}
    taken = [(owner[i], position[i]) in given for i in range(n)]
    best = np.array([max([k[x_, c] for c in range(n) if taken[c]], default=0.0) for x_ in range(n)])
    left = list(budgets)
    order, gains, first = [], [], None
    while sum(left):
        feasible = [i for i in range(n) if not taken[i] and left[owner[i]] > 0]
        gain = {c: float(np.maximum(k[:, c] - best, 0.0).sum()) for c in feasible}
        top = max(gain.values())
        if first is not None and top <= NOTHING * first:
            best, first = np.zeros(n), None
            continue
        pick = min(c for c in feasible if gain[c] >= top - TIE * abs(top))
        first = gain[pick] if first is None else first
        order.append((owner[pick], position[pick]))
        gains.append(gain[pick])
        taken[pick] = True
        left[owner[pick]] -= 1
        best = np.maximum(best, k[:, pick])
    return order, gains
