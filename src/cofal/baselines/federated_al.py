"""F-AL: Ahn, Ma, Park and You, "Federated Active Learning (F-AL): an Efficient Annotation Strategy for Federated
Learning" (IEEE Access 2024). Every client samples by the uncertainty of the federated model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cofal.baselines.playing import Order, Turn, fit_federated, play, random_start
from cofal.baselines.system import Federation, Outcome
from cofal.baselines.uncertainty import SCORES, highest
from cofal.learning.head import predict_proba


@dataclass(frozen=True)
class FederatedAL:
    """A system: `score` is entropy, least-confidence or margin. The first budget is random, as in the paper."""

    score: str = "entropy"

    def __call__(self, federation: Federation, budgets: Sequence[Sequence[int]], seed: int) -> Outcome:
        return play(federation, budgets, seed, self._choose, fit_federated)

    def _choose(self, turn: Turn) -> Order:
        if turn.before is None:
            return random_start(turn)
        (head,) = turn.before.heads
        assert head is not None
        embeddings = turn.federation.embeddings
        return highest(turn, lambda client, rows: SCORES[self.score](predict_proba(head, embeddings[client][rows])))
