"""What is timed: cofal's selectors, the floor, scikit-activeml, and plain loops as the papers describe them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

CLIENTS = 4
DELTA, SIGMA = 0.9, 1.0


def gemm_pass(x: np.ndarray, b: int, approx: bool = False) -> np.ndarray:
    """One float32 matrix product over all n^2 pairs, tile by tile, nothing kept: the least an exact method does."""
    rows = torch.from_numpy(x)
    tile = 2048
    out = torch.empty(tile * tile)
    for i in range(0, len(rows), tile):
        a = rows[i : i + tile]
        for j in range(0, len(rows), tile):
            c = rows[j : j + tile]
            torch.mm(a, c.T, out=out[: len(a) * len(c)].view(len(a), len(c)))
    return np.empty(0, np.int64)


def _cofal(method: str, **params: float) -> Callable[[np.ndarray, int, bool], np.ndarray]:
    def run(x: np.ndarray, b: int, approx: bool = False) -> np.ndarray:
        import cofal

        bounds = np.linspace(0, len(x), CLIENTS + 1).astype(int)
        parts = [x[low:high] for low, high in pairwise(bounds)]
        budgets = [b // CLIENTS + (client < b % CLIENTS) for client in range(CLIENTS)]
        extra = {"approx": True} if approx else {}
        picks = cofal.select(parts, budgets, method=method, coordination="central", seed=0, **params, **extra)
        return np.array([bounds[client] + position for client, position in picks.order])

    return run


def activeml_probcover(x: np.ndarray, b: int, approx: bool = False) -> np.ndarray:
    from skactiveml.pool import ProbCover

    query = ProbCover(random_state=0, n_classes=10, deltas=[DELTA])  # one radius: it is spared its search for another
    return np.asarray(query.query(x, np.full(len(x), np.nan), batch_size=b))


def activeml_typiclust(x: np.ndarray, b: int, approx: bool = False) -> np.ndarray:
    from skactiveml.pool import TypiClust

    return np.asarray(TypiClust(random_state=0).query(x, np.full(len(x), np.nan), batch_size=b))


def dense_maxherding(x: np.ndarray, b: int, approx: bool = False) -> np.ndarray:
    """The kernel of all pairs in memory, every gain anew at every pick."""
    kernel = torch.from_numpy(x)
    kernel = torch.cdist(kernel, kernel).square_().mul_(-1 / SIGMA**2).exp_()  # (n, n)
    best = torch.zeros(len(x))
    picks: list[int] = []
    for _ in range(b):
        gains = torch.cat([(rows - best).clamp_(min=0).mean(1) for rows in kernel.split(1024)])
        gains[picks] = -1
        picks.append(int(gains.argmax()))
        best = torch.maximum(best, kernel[picks[-1]])
    return np.array(picks)


def edge_list_probcover(x: np.ndarray, b: int, approx: bool = False) -> np.ndarray:
    """All edges of the ball graph as a table of (from, to); at every pick count, take the best, drop what it covers."""
    rows = torch.from_numpy(x)
    source, target = [], []
    for start in range(0, len(x), 500):
        near = (torch.cdist(rows[start : start + 500], rows) <= DELTA).nonzero().numpy()
        source.append(near[:, 0] + start)
        target.append(near[:, 1])
    edges = np.stack([np.concatenate(source), np.concatenate(target)])
    picks: list[int] = []
    for _ in range(b):
        degrees = np.bincount(edges[0], minlength=len(x))
        picks.append(int(degrees.argmax()))
        covered = edges[1][edges[0] == picks[-1]]
        edges = edges[:, ~np.isin(edges[1], covered)]
    return np.array(picks)


JOBS: dict[str, Callable[[np.ndarray, int, bool], np.ndarray]] = {
    "gemm pass": gemm_pass,
    "probcover": _cofal("probcover", delta=DELTA),
    "maxherding": _cofal("maxherding", lengthscale=SIGMA),
    "typiclust": _cofal("typiclust"),
    "scikit-activeml probcover": activeml_probcover,
    "scikit-activeml typiclust": activeml_typiclust,
    "dense maxherding": dense_maxherding,
    "edge-list probcover": edge_list_probcover,
}
OURS = ("probcover", "maxherding", "typiclust")

# The largest n a peer is run at, for a budget of 100 and of 1,000: beyond it needs several GiB or many minutes.
PEER_LIMITS: dict[str, tuple[int, int]] = {
    "scikit-activeml probcover": (10_000, 5_000),
    "scikit-activeml typiclust": (50_000, 10_000),
    "dense maxherding": (20_000, 5_000),
    "edge-list probcover": (20_000, 10_000),
}
