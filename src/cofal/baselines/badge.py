"""BADGE: Ash, Zhang, Krishnamurthy, Langford and Agarwal, "Deep Batch Active Learning by Diverse, Uncertain Gradient
Lower Bounds" (ICLR 2020). Every client seeds k-means++ on the gradient embeddings of the federated model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cofal.baselines.gradients import Gradients, gradient_embeddings
from cofal.baselines.playing import Order, Turn, fit_federated, free_rows, interleave, play, random_start
from cofal.baselines.system import Federation, Outcome
from cofal.rng import generator


def badge(federation: Federation, budgets: Sequence[Sequence[int]], seed: int) -> Outcome:
    """A system. The first budget is random: there is no model yet."""
    return play(federation, budgets, seed, _choose, fit_federated)


def _choose(turn: Turn) -> Order:
    if turn.before is None:
        return random_start(turn)
    (head,) = turn.before.heads
    assert head is not None
    lists = []
    for client, wanted in enumerate(turn.wanted):
        rows = free_rows(turn, client)
        gradients = gradient_embeddings(head, turn.federation.embeddings[client][rows])
        lists.append(rows[plus_plus(gradients, wanted, generator(turn.seed, "badge", client))].tolist())
    return interleave(lists)


def plus_plus(gradients: Gradients, count: int, rng: np.random.Generator) -> list[int]:
    """The longest gradient first; then rows drawn by their squared distance to the nearest one drawn before."""
    chosen: list[int] = []
    nearest = np.full(len(gradients.norms), np.inf)
    for _ in range(count):
        if not chosen:
            row = int(gradients.norms.argmax())
        else:
            mass = nearest.astype(np.float64)
            mass[chosen] = 0
            if mass.sum() <= 0:  # copies of what is chosen are all that is left
                mass = np.ones(len(mass))
                mass[chosen] = 0
            row = int(rng.choice(len(mass), p=mass / mass.sum()))
        chosen.append(row)
        nearest = np.minimum(nearest, gradients.distances(row))
    return chosen
