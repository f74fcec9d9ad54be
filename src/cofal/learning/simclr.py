"""SimCLR: the model, its NT-Xent loss, and one local training as a client of a federation does it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cofal.learning.batches import Proximal, check_finite, cosine_lr, images_to_tensor, shuffled_batches
from cofal.learning.encoders import ResNet, build_encoder, initialise
from cofal.learning.optimizers import make_optimizer
from cofal.learning.views import Views

__all__ = ["SimCLR", "build_simclr", "cosine_lr", "nt_xent", "train_simclr"]


class SimCLR(nn.Module):
    """An encoder and the two-layer projection whose output the loss compares; only the encoder is kept afterwards."""

    def __init__(self, encoder: ResNet, projection_dim: int = 128, *, generator: torch.Generator | None) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.feature_dim
        with torch.device("meta"):
            projection = nn.Sequential(
                nn.Linear(width, width, bias=False),
                nn.BatchNorm1d(width),
                nn.ReLU(inplace=True),
                nn.Linear(width, projection_dim),
            )
        initialise(projection, generator)
        self.projection = projection

    def forward(self, images: Tensor) -> Tensor:
        """Images (b, c, h, w) to projections (b, projection_dim), not normalised."""
        return self.projection(self.encoder(images))


def build_simclr(name: str, channels: int, generator: torch.Generator | None, projection_dim: int = 128) -> SimCLR:
    """A SimCLR model around the encoder called `name`; for its weights see `initialise`."""
    return SimCLR(build_encoder(name, channels, generator), projection_dim, generator=generator)


def nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Normalised temperature-scaled cross-entropy of n pairs.

    z1, z2: (n, d), row i of both from image i; rows need not be unit length. Each of the 2n projections must find its
    partner among the other 2n - 1. Returns the mean over the 2n.
    """
    n = len(z1)
    z = F.normalize(torch.cat([z1, z2]), dim=1)  # (2n, d)
    similarity = z @ z.T / temperature  # (2n, 2n)
    similarity.fill_diagonal_(float("-inf"))
    partner = torch.arange(2 * n, device=z.device).roll(n)
    return F.cross_entropy(similarity, partner)


def train_simclr(
    model: SimCLR,
    images: np.ndarray,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    optimizer: str,
    momentum: float,
    weight_decay: float,
    temperature: float,
    views: Views,
    generator: torch.Generator,
    proximal_mu: float = 0.0,
    device: str | torch.device = "cpu",
    on_batch: Callable[[int, int], None] | None = None,
) -> float:
    """Train `model` in place on one client's images (n, h, w, c) uint8; returns the mean loss over all batches.

    The learning rate is constant here: the caller follows `cosine_lr` over the rounds. The optimiser starts afresh at
    each call: FedAvg averages weights only, and momentum gathered against a site's own weights of the round before
    would push the averaged weights in a stale direction; it also keeps clients free of state that could be lost.
    Every sample is used once an epoch. With fewer than two images there is nothing to contrast: the model stays as it
    is and the loss is 0. `on_batch(done, total)` is called after each batch.
    """
    n = len(images)
    if n < 2 or epochs < 1:
        return 0.0
    model.to(device).train()
    stepper = make_optimizer(optimizer, model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    proximal = Proximal(model.parameters(), proximal_mu)
    total = torch.zeros((), device=device)
    done, batches = 0, 0
    for _ in range(epochs):
        epoch = list(shuffled_batches(n, batch_size, 2, generator))
        batches = len(epoch) * epochs
        for chosen in epoch:
            first, second = views(images_to_tensor(images[chosen], device), generator)
            z1, z2 = model(torch.cat([first, second])).chunk(2)
            loss = nt_xent(z1, z2, temperature)
            stepper.zero_grad()
            loss.backward()
            proximal.add_to_gradients()
            stepper.step()
            total += loss.detach()
            done += 1
            if on_batch is not None:
                on_batch(done, batches)
    return check_finite(total.item() / done, lr)
