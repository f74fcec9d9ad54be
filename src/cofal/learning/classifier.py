"""The image network of phase III: any encoder with a linear layer, trained on labelled raw images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cofal.learning.batches import Proximal, check_finite, images_to_tensor, shuffled_batches
from cofal.learning.encoders import ResNet, build_encoder, initialise
from cofal.learning.optimizers import make_optimizer
from cofal.learning.views import Augment


class Classifier(nn.Module):
    """Images (b, c, h, w), uint8 or float in [0, 1], to logits (b, classes)."""

    def __init__(self, encoder: ResNet, classes: int, *, generator: torch.Generator | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.classes = classes
        with torch.device("meta"):
            output = nn.Linear(encoder.feature_dim, classes)
        initialise(output, generator)
        self.output = output

    def forward(self, images: Tensor) -> Tensor:
        return self.output(self.encoder(images))


def build_classifier(name: str, channels: int, classes: int, generator: torch.Generator | None) -> Classifier:
    """A classifier around the encoder called `name`; for its weights see `initialise`."""
    return Classifier(build_encoder(name, channels, generator), classes, generator=generator)


def train_classifier(
    model: Classifier,
    images: np.ndarray,
    y: np.ndarray,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    optimizer: str,
    momentum: float,
    weight_decay: float,
    augment: Augment,
    generator: torch.Generator,
    proximal_mu: float = 0.0,
    device: str | torch.device = "cpu",
    on_batch: Callable[[int, int], None] | None = None,
) -> float:
    """Train `model` in place on images (n, h, w, c) uint8 with labels y (n,) int64; returns the mean loss over batches.

    As `train_simclr`: a fresh optimiser, a constant learning rate, every sample once an epoch. A single labelled image
    is seen as two augmented copies, since BatchNorm needs two; without labels the model stays as it is, the loss is 0.
    """
    n = len(y)
    if n == 0 or epochs < 1:
        return 0.0
    if n == 1:
        images, y, n = np.repeat(images, 2, axis=0), np.repeat(y, 2), 2
    model.to(device).train()
    stepper = make_optimizer(optimizer, model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    proximal = Proximal(model.parameters(), proximal_mu)
    labels = torch.from_numpy(np.array(y, dtype=np.int64)).to(device)
    total = torch.zeros((), device=device)
    done = 0
    for _ in range(epochs):
        epoch = list(shuffled_batches(n, batch_size, 2, generator))
        for chosen in epoch:
            pixels = augment(images_to_tensor(images[chosen], device), generator)
            loss = F.cross_entropy(model(pixels), labels[torch.from_numpy(chosen)])
            stepper.zero_grad()
            loss.backward()
            proximal.add_to_gradients()
            stepper.step()
            total += loss.detach()
            done += 1
            if on_batch is not None:
                on_batch(done, len(epoch) * epochs)
    return check_finite(total.item() / done, lr)


def classify(
    model: Classifier, images: np.ndarray, *, batch_size: int = 512, device: str | torch.device = "cpu"
) -> np.ndarray:
    """Class probabilities (n, classes) float32 of images (n, h, w, c) uint8, read batch by batch."""
    model.to(device).eval()
    result = np.empty((len(images), model.classes), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(images), batch_size):
            logits = model(images_to_tensor(images[start : start + batch_size], device))
            result[start : start + batch_size] = torch.softmax(logits, dim=1).cpu().numpy()
    return result
