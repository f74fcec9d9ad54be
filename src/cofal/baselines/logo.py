"""LoGo: Kim, Bae, Song and Yun, "Re-thinking Federated Active Learning Based on Inter-Class Diversity" (CVPR 2023), and
its forerunner LG-FAL (ICML workshop 2022): a client's own model spreads the picks, the federated model makes them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from cofal.baselines.gradients import gradient_embeddings
from cofal.baselines.playing import Order, Turn, fit_alone, fit_federated, free_rows, interleave, play, random_start
from cofal.baselines.system import Federation, Outcome
from cofal.baselines.uncertainty import entropy
from cofal.learning.head import predict_proba
from cofal.rng import generator

SKETCH = 128  # dimensions in which gradients are clustered; inner products keep to within about 1 / sqrt(128)
ITERATIONS = 20


def logo(federation: Federation, budgets: Sequence[Sequence[int]], seed: int) -> Outcome:
    """A system. The first budget is random, as in the paper."""
    return play(federation, budgets, seed, _choose, fit_federated)


def _choose(turn: Turn) -> Order:
    if turn.before is None:
        return random_start(turn)
    (shared,) = turn.before.heads
    assert shared is not None
    lists = []
    for client, wanted in enumerate(turn.wanted):
        rows = free_rows(turn, client)
        x = turn.federation.embeddings[client]
        own = fit_alone(turn.federation, client, turn.labelled[client], turn.seed, x)
        uncertainty = entropy(predict_proba(shared, x[rows]))
        rng = generator(turn.seed, "logo", client)
        # Macro step: as many groups as labels, by the local-only model. A client without labels has none: one group.
        groups = np.zeros(len(rows), dtype=np.int64)
        if own is not None and 1 < wanted <= len(rows):
            groups = cluster(gradient_embeddings(own, x[rows]).sketch(SKETCH, rng), wanted, rng)
        lists.append(rows[most_uncertain(groups, uncertainty, wanted)].tolist())
    return interleave(lists)


def cluster(points: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """(n,) k-means groups of `points` (n, width)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than groups: some stay empty
        state = int(rng.integers(2**31))
        found: np.ndarray = KMeans(count, n_init=1, max_iter=ITERATIONS, random_state=state).fit_predict(points)
    return found


def most_uncertain(groups: np.ndarray, uncertainty: np.ndarray, count: int) -> np.ndarray:
    """Micro step: the most uncertain row of every group, the most uncertain of these first.

    Where groups are fewer than `count`, their second rows follow, and so on.
    """
    by_uncertainty = np.argsort(-uncertainty, kind="stable")
    rank_in_group = np.empty(len(groups), dtype=np.int64)
    seen: dict[int, int] = {}
    for row in by_uncertainty:
        group = int(groups[row])
        rank_in_group[row] = seen.get(group, 0)
        seen[group] = rank_in_group[row] + 1
    return by_uncertainty[np.argsort(rank_in_group[by_uncertainty], kind="stable")][:count]
