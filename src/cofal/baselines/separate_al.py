"""S-AL: Ahmed et al., "Active Learning Based Federated Learning for Waste and Natural Disaster Image Classification"
(IEEE Access 2020). Every client samples by the uncertainty of a model of its own labels alone; one federated head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cofal.baselines.playing import Order, Turn, fit_alone, fit_federated, play, random_start
from cofal.baselines.system import Federation, Outcome
from cofal.baselines.uncertainty import SCORES, highest
from cofal.learning.head import predict_proba


@dataclass(frozen=True)
class SeparateAL:
    """A system: `score` is entropy, least-confidence or margin. The first budget is random, as in the paper."""

    score: str = "entropy"

    def __call__(self, federation: Federation, budgets: Sequence[Sequence[int]], seed: int) -> Outcome:
        return play(federation, budgets, seed, self._choose, fit_federated)

    def _choose(self, turn: Turn) -> Order:
        if turn.before is None:
            return random_start(turn)

        def by_own_model(client: int, positions: np.ndarray) -> np.ndarray:
            rows = turn.federation.embeddings[client]
            head = fit_alone(turn.federation, client, turn.labelled[client], turn.seed, rows)
            if head is None:  # no label, no model: all rows are alike
                return np.zeros(len(positions))
            return SCORES[self.score](predict_proba(head, rows[positions]))

        return highest(turn, by_own_model)
