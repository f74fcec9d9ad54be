"""The per-client pipeline adapted from Ono, Nakamura and Takase, "Exploring the Possibility of TypiClust for Low-Budget
Federated Active Learning" (COMPSAC 2025), strengthened as the coordination paper does: every client has its own
encoder, its own selection and its own classifier on its own features; the most confident classifier answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cofal.baselines.playing import Fitted, Labelled, Order, Turn, fit_alone, interleave, play
from cofal.baselines.system import Federation, Outcome, Own
from cofal.errors import UserError
from cofal.learning.head import predict_proba
from cofal.selection import select


@dataclass(frozen=True)
class Separate:
    """A system: `method` run by each client alone in its own feature space."""

    method: str = "typiclust"
    params: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, federation: Federation, budgets: Sequence[Sequence[int]], seed: int) -> Outcome:
        own = _own(federation)

        def choose(turn: Turn) -> Order:
            lists = []
            for client, each in enumerate(own):  # spaces of their own, maybe of different dimensions: one call each
                labelled = np.array(turn.labelled[client], dtype=np.int64)
                picks = select(
                    [each.rows], [turn.wanted[client]], self.method, "per-client",
                    labeled=[labelled], seed=turn.seed, **self.params,
                )  # fmt: skip
                lists.append(picks.indices[0].tolist())
            return interleave(lists)

        return play(federation, budgets, seed, choose, _fit)


def _fit(federation: Federation, labelled: Labelled, seed: int) -> Fitted:
    own = _own(federation)
    heads = [fit_alone(federation, k, labelled[k], seed, each.rows) for k, each in enumerate(own)]
    answers = [predict_proba(head, each.test) for head, each in zip(heads, own) if head is not None]
    return Fitted(heads, most_confident(answers))


def most_confident(answers: Sequence[np.ndarray]) -> np.ndarray:
    """Of several classifiers' probabilities, each (t, classes), row by row those of the largest entry; ties: first."""
    stacked = np.stack(answers)
    return stacked[stacked.max(axis=2).argmax(axis=0), np.arange(stacked.shape[1])]


def _own(federation: Federation) -> list[Own]:
    if federation.own is None:
        raise UserError("this system needs each client's own encoder; give the federation `own` embeddings")
    return federation.own
