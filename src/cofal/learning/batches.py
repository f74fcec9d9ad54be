"""What every local training loop shares: samples into batches, the proximal pull, the schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from cofal.errors import UserError


def batch_sizes(n: int, batch_size: int, smallest: int = 1) -> list[int]:
    """Sizes, equal to within one, that cover n samples with batches of at most `batch_size` and at least `smallest`.

    Even batches lose no sample and leave no tiny last batch, whose statistics would upset BatchNorm and whose loss
    would have few negatives. Where n is too small for both limits, `smallest` wins (n = 3, batch 2: one batch of 3).
    """
    if n < 1:
        return []
    count = max(1, min(math.ceil(n / batch_size), n // smallest))
    short, longer = divmod(n, count)
    return [short + 1] * longer + [short] * (count - longer)


def shuffled_batches(n: int, batch_size: int, smallest: int, generator: torch.Generator) -> Iterator[np.ndarray]:
    """One epoch: every position 0..n-1 once, in random batches; each is sorted, so that a memmap is read forwards."""
    order = torch.randperm(n, generator=generator).numpy()
    start = 0
    for size in batch_sizes(n, batch_size, smallest):
        yield np.sort(order[start : start + size])
        start += size


def images_to_tensor(images: np.ndarray, device: str | torch.device = "cpu") -> Tensor:
    """uint8 (b, h, w, c) to uint8 (b, c, h, w) on the device; copies, so that a read-only memmap will do."""
    return torch.from_numpy(np.array(images, dtype=np.uint8)).permute(0, 3, 1, 2).to(device)


class Proximal:
    """FedProx: adds mu * (w - w_received) to the gradients, the derivative of mu/2 ||w - w_received||^2."""

    def __init__(self, parameters: Iterable[nn.Parameter], mu: float) -> None:
        self.mu = mu
        self.parameters = list(parameters) if mu else []
        self.received = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        if self.mu:
            for parameter, received in zip(self.parameters, self.received):
                assert parameter.grad is not None  # called between backward() and step()
                parameter.grad.add_(parameter - received, alpha=self.mu)


def check_finite(loss: float, lr: float) -> float:
    """The loss, or a clear failure: weights that diverged must not be sent into an average."""
    if not math.isfinite(loss):
        raise UserError(f"training diverged (loss {loss}) at learning rate {lr:g}; lower it")
    return loss


def cosine_lr(base: float, round: int, rounds: int, warmup: int = 0) -> float:
    """Learning rate of `round` (0 .. rounds-1): linear over the first `warmup` rounds, then half a cosine towards 0."""
    if round < warmup:
        return base * (round + 1) / (warmup + 1)
    return base * 0.5 * (1.0 + math.cos(math.pi * (round - warmup) / max(1, rounds - warmup)))


@contextmanager
def one_thread() -> Iterator[None]:
    """A head on a few dozen labels is too small to share among cores: waking them costs more than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
