"""The federated training of a head on arrays in one process: the rounds of Phase III without messages.

Same seed and settings, same bits as `federation/phases/training.py` gives (a test holds the two together), in less
time: experiments train thousands of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cofal.errors import UserError
from cofal.learning.batches import cosine_lr, one_thread
from cofal.learning.head import Head, build_head, train_flat
from cofal.rng import torch_generator

if TYPE_CHECKING:
    from cofal.config import TrainSettings

JOB = "head"  # names the random streams, as in the messages

LocalTraining = Callable[[int, Head, dict[str, Any]], None]
"""(client, head with the weights received, arguments of `train_flat`): trains the head in place."""


def federated_head(
    rows: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    classes: int,
    settings: TrainSettings,
    *,
    seed: int,
    track: str = "",
    names: Sequence[str] | None = None,
    local: LocalTraining | None = None,
) -> Head:
    """A head trained by all clients on their labelled embeddings: rows[k] (m_k, d) float32, labels[k] (m_k,) int.

    A client without labels is left out of every average. `track` and `names` (default site-0, site-1, ...) are those of
    a run of messages that is to be repeated: they name the streams that shuffle batches. `local` replaces the training
    at a client, which is `train_flat` on its labels.
    """
    names = [f"site-{client}" for client in range(len(rows))] if names is None else names
    inputs = [torch.from_numpy(np.ascontiguousarray(own, dtype=np.float32)) for own in rows]
    targets = [torch.from_numpy(np.ascontiguousarray(own, dtype=np.int64)) for own in labels]
    taking_part = [client for client, own in enumerate(targets) if len(own)]
    if not taking_part:
        raise UserError("no client has a label to train on; give at least one label")
    total = sum(len(targets[client]) for client in taking_part)
    head = build_head(inputs[0].shape[1], settings.hidden, classes, torch_generator(seed, JOB))
    average = _Server(settings)
    current = _read(head)
    with one_thread():
        for number in range(1, settings.rounds + 1):
            mean: np.ndarray | None = None
            options = local_options(settings, cosine_lr(settings.lr, number - 1, settings.rounds))
            for client in taking_part:
                options["generator"] = torch_generator(seed, JOB, track, names[client], number)
                if local is None:
                    trained = current.copy()
                    train_flat(torch.from_numpy(trained), head.sizes, inputs[client], targets[client], **options)
                else:
                    _write(head, current)
                    local(client, head, options)
                    trained = _read(head)
                trained *= len(targets[client]) / total
                mean = trained if mean is None else np.add(mean, trained, out=mean)
            assert mean is not None
            current = average(number, current, mean)
    _write(head, current)
    return head


def local_options(settings: TrainSettings, lr: float) -> dict[str, Any]:
    """The arguments of `train_flat` in a round at learning rate `lr`, all but the generator."""
    return {
        "epochs": settings.local_epochs,
        "batch_size": settings.batch_size,
        "lr": lr,
        "optimizer": settings.optimizer,
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "proximal_mu": settings.strategy_options.get("proximal_mu", 0.0),
    }


class _Server:
    """What the server makes of the weighted mean: FedAvg and FedProx keep it, FedAdam takes a step towards it.

    The arithmetic, types included, is that of Flower's strategies, on one flat vector.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self.adam = settings.strategy == "fedadam"
        if settings.strategy not in ("fedavg", "fedprox", "fedadam"):
            raise UserError(
                f"strategy {settings.strategy} is not available without messages; use fedavg, fedprox or fedadam"
            )
        options = settings.strategy_options
        self.eta, self.tau = options.get("eta", 1e-1), options.get("tau", 1e-3)
        self.beta_1, self.beta_2 = options.get("beta_1", 0.9), options.get("beta_2", 0.99)
        self.first: np.ndarray | None = None
        self.second: np.ndarray | None = None

    def __call__(self, number: int, current: np.ndarray, mean: np.ndarray) -> np.ndarray:
        if not self.adam:
            return mean
        step = mean - current
        if self.first is None or self.second is None:
            self.first, self.second = np.zeros_like(step), np.zeros_like(step)
        self.first = self.beta_1 * self.first + (1 - self.beta_1) * step
        self.second = self.beta_2 * self.second + (1 - self.beta_2) * (step**2)
        # The rate is a float64 scalar, so the step is taken in float64 and rounded once.
        rate = (
            self.eta
            * np.sqrt(1 - np.power(self.beta_2, number + 1.0))
            / (1 - np.power(self.beta_1, number + 1.0))
        )  # fmt: skip
        return (current + rate * self.first / (np.sqrt(self.second) + self.tau)).astype(np.float32)


@torch.no_grad()
def _read(head: Head) -> np.ndarray:
    """A copy of all weights as one float32 vector."""
    return torch.cat([p.view(-1) for p in head.parameters()]).numpy()


@torch.no_grad()
def _write(head: Head, flat: np.ndarray) -> None:
    start = 0
    for parameter in head.parameters():
        parameter.copy_(torch.from_numpy(flat[start : start + parameter.numel()]).view(parameter.shape))
        start += parameter.numel()
