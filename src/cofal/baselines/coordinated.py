"""Coordinated low-budget selection: Mohr and Weinshall, "Coordination on a Budget: Federated Active Learning with Few
Labels". One selector over all clients' shared embeddings (plain, perturbed, or known by aggregates only), or run by
each client alone in that space ("CentEmb per-client"), or as `auto` finds best; one federated head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cofal.baselines.playing import Order, Turn, fit_federated, play
from cofal.baselines.system import Federation, Outcome
from cofal.privacy.perturbation import perturb
from cofal.rng import generator
from cofal.selection import select
from cofal.selection.auto import Decision


@dataclass(frozen=True)
class Coordinated:
    """A system: `method` (a name of `cofal.select`, or a selector) under one kind of coordination."""

    method: str | Callable[..., Any]
    coordination: str = "central"  # central | aggregate | per-client | auto
    epsilon: float = 0.0  # displacement of the noise on what clients share, for central selection
    params: Mapping[str, Any] = field(default_factory=dict)  # of the method, such as delta

    def __call__(self, federation: Federation, budgets: Sequence[Sequence[int]], seed: int) -> Outcome:
        seen = federation.embeddings
        if self.epsilon:  # drawn once: a client sends its rows once, and later selections work on the same noise
            seen = [
                perturb(_unit(rows), self.epsilon, generator(seed, "perturb", client))
                for client, rows in enumerate(federation.embeddings)
            ]
        exchanged = [0, 0]
        decisions: list[Decision] = []

        def choose(turn: Turn) -> Order:
            picks = select(
                seen,
                turn.wanted,
                self.method,
                self.coordination,
                labeled=[np.array(own, dtype=np.int64) for own in turn.labelled],
                seed=turn.seed,
                epsilon=self.epsilon,
                already_noised=True,
                **self.params,
            )
            exchanged[0] += picks.rounds
            exchanged[1] += picks.bytes_up
            decisions.extend([picks.decision] if picks.decision else [])
            return picks.order

        outcome = play(federation, budgets, seed, choose, fit_federated)
        return replace(outcome, rounds=exchanged[0], bytes_up=exchanged[1], decisions=decisions)


def _unit(rows: np.ndarray) -> np.ndarray:
    exact = np.asarray(rows, dtype=np.float64)
    return exact / np.linalg.norm(exact, axis=1, keepdims=True)
