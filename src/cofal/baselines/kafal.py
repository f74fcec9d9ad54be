"""KAFAL: Cao, Shi, Yu, Wang and Tao, "Knowledge-Aware Federated Active Learning with Non-IID Data" (ICCV 2023).

Sampling (KSAS): rows on which a client's model and the federated one differ most, both bent towards the classes the
client knows well. Training (KCFU): a balanced softmax on the client's labels, and distillation from the federated model
that makes up for the classes it knows little of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cofal.baselines.playing import Fitted, Labelled, Order, Turn, fit_federated, play, random_start
from cofal.baselines.system import Federation, Outcome
from cofal.baselines.uncertainty import highest
from cofal.learning.batches import batch_sizes, shuffled_batches
from cofal.learning.federated_head import local_options
from cofal.learning.head import Head
from cofal.learning.optimizers import make_optimizer
from cofal.rng import torch_generator

# After one step from the weights received a client still is its teacher, and there is nothing to distil or to compare.
LOCAL_EPOCHS = 5


def kafal(federation: Federation, budgets: Sequence[Sequence[int]], seed: int) -> Outcome:
    """A system. The first budget is random, as in the paper; local trainings take at least five epochs."""
    epochs = max(LOCAL_EPOCHS, federation.train.local_epochs)
    patient = replace(federation, train=federation.train.model_copy(update={"local_epochs": epochs}))
    return play(patient, budgets, seed, _choose, _fit)


def _fit(federation: Federation, labelled: Labelled, seed: int) -> Fitted:
    clients = [_Client(federation, client, own) for client, own in enumerate(labelled)]
    return fit_federated(federation, labelled, seed, local=lambda client, head, told: clients[client].train(head, told))


def _choose(turn: Turn) -> Order:
    if turn.before is None:
        return random_start(turn)
    (shared,) = turn.before.heads
    assert shared is not None

    def discrepancy(client: int, rows: np.ndarray) -> np.ndarray:
        own = _Client(turn.federation, client, turn.labelled[client])
        if not turn.labelled[client]:
            return np.zeros(len(rows))
        # The client's model: the federated one after a local training at the full rate (rounds end at a rate near 0).
        specialised = Head(shared.d, shared.hidden, shared.classes)
        specialised.load_state_dict(shared.state_dict())
        settings = turn.federation.train
        own.train(
            specialised,
            {**local_options(settings, settings.lr), "generator": torch_generator(turn.seed, "kafal", client)},
        )
        x = torch.from_numpy(np.ascontiguousarray(turn.federation.embeddings[client][rows], dtype=np.float32))
        with torch.inference_mode():
            return specialised_discrepancy(specialised(x), shared(x), own.counts).numpy()

    return highest(turn, discrepancy)


def specialised_discrepancy(local: Tensor, shared: Tensor, counts: Tensor) -> Tensor:
    """(n,) half the sum of both KL divergences between two models' logits (n, classes), shifted by log class counts.

    Classes without a label have no part in it.
    """
    known = counts > 0
    shift = counts[known].log()
    p = torch.log_softmax(local[:, known] + shift, dim=1)
    q = torch.log_softmax(shared[:, known] + shift, dim=1)
    return 0.5 * ((p.exp() - q.exp()) * (p - q)).sum(dim=1)


class _Client:
    """One client's labelled and unlabelled rows, and its local training."""

    def __init__(self, federation: Federation, client: int, labelled: list[int]) -> None:
        rows = federation.embeddings[client]
        free = np.ones(len(rows), dtype=bool)
        free[labelled] = False
        self.x = torch.from_numpy(np.ascontiguousarray(rows[labelled], dtype=np.float32))
        self.y = torch.from_numpy(federation.labels[client][labelled].astype(np.int64))
        self.free = torch.from_numpy(np.ascontiguousarray(rows[free], dtype=np.float32))
        self.counts = torch.bincount(self.y, minlength=federation.classes).float()
        inverse = torch.where(self.counts > 0, 1 / self.counts.clamp(min=1), 0.0)
        self.weakness = inverse / inverse.sum().clamp(min=1e-9)  # by class: rare ones weigh most, all add up to one
        self.rounds = 0

    def train(self, head: Head, told: dict[str, Any]) -> None:
        """Train `head` in place; from a client's second round on the weights received are its teacher."""
        rng = told["generator"]
        stepper = make_optimizer(
            told["optimizer"],
            head.parameters(),
            lr=told["lr"],
            momentum=told["momentum"],
            weight_decay=told["weight_decay"],
        )
        sizes = batch_sizes(len(self.y), told["batch_size"])  # a batch takes as many rows without a label as with one
        extra = self.free[torch.randperm(len(self.free), generator=rng)[: sizes[0]]]
        with torch.no_grad():
            teacher = torch.log_softmax(head(extra), dim=1)
        weight = self.weakness[teacher.argmax(dim=1)]
        distil = self.rounds > 0 and len(extra) > 0
        self.rounds += 1
        for _ in range(told["epochs"]):
            for part in shuffled_batches(len(self.y), told["batch_size"], 1, rng):
                chosen = torch.from_numpy(part)
                loss = F.cross_entropy(head(self.x[chosen]) + self.counts.log(), self.y[chosen])
                if distil:
                    student = torch.log_softmax(head(extra), dim=1)
                    loss = loss + (weight * (teacher.exp() * (teacher - student)).sum(dim=1)).mean()
                stepper.zero_grad()
                loss.backward()
                stepper.step()
