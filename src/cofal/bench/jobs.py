"""What is timed: cofal's selectors, the floor, scikit-activeml, and plain loops as the papers describe them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

CLIENTS = 4
DELTA, SIGMA = 0.9, 1.0


@dataclass(frozen=True)
class Outcome:
    """The rows picked, and the share of coverage that an approximate selection says it lost."""

    picks: list[int]
    coverage_loss: float | None = None


Job = Callable[[np.ndarray, int, bool], Outcome]  # (rows, budget, approximate or not)


def gemm_pass(x: np.ndarray, b: int, approx: bool = False) -> Outcome:
    """One float32 matrix product over all n^2 pairs, tile by tile, nothing kept: the least an exact method does."""
    rows = torch.from_numpy(x)
    tile = 2048
    out = torch.empty(tile * tile)
    for i in range(0, len(rows), tile):
        a = rows[i : i + tile]
        for j in range(0, len(rows), tile):
            c = rows[j : j + tile]
            torch.mm(a, c.T, out=out[: len(a) * len(c)].view(len(a), len(c)))
    return Outcome([])


def _cofal(method: str, **params: Any) -> Job:
    def run(x: np.ndarray, b: int, approx: bool = False) -> Outcome:
        import cofal

        bounds = np.linspace(0, len(x), CLIENTS + 1).astype(int)
        parts = [x[low:high] for low, high in pairwise(bounds)]
        budgets = [b // CLIENTS + (client < b % CLIENTS) for client in range(CLIENTS)]
        asked: dict[str, Any] = params | ({"approx": True} if approx else {})
        picks = cofal.select(parts, budgets, method, "central", **asked)
        rows = [int(bounds[client]) + position for client, position in picks.order]
        return Outcome(rows, picks.coverage_loss)

    return run


def activeml_probcover(x: np.ndarray, b: int, approx: bool = False) -> Outcome:
    from skactiveml.pool import ProbCover

    query = ProbCover(random_state=0, n_classes=10, deltas=[DELTA])  # one radius: it is spared its search for another
    return Outcome(query.query(x, np.full(len(x), np.nan), batch_size=b).tolist())


def activeml_typiclust(x: np.ndarray, b: int, approx: bool = False) -> Outcome:
    from skactiveml.pool import TypiClust

    return Outcome(TypiClust(random_state=0).query(x, np.full(len(x), np.nan), batch_size=b).tolist())


def dense_maxherding(x: np.ndarray, b: int, approx: bool = False) -> Outcome:
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
    return Outcome(picks)


def edge_list_probcover(x: np.ndarray, b: int, approx: bool = False) -> Outcome:
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
    return Outcome(picks)


JOBS: dict[str, Job] = {
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
