"""The classifier of phase III: one hidden layer on frozen embeddings, and its local training.

Training tiny heads on tiny label sets is the inner loop of every experiment, so the forward and backward pass are
written out on one flat parameter vector: no autograd graph, no per-parameter optimiser calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cofal.errors import UserError
from cofal.learning.batches import batch_sizes, check_finite
from cofal.learning.encoders import initialise
from cofal.learning.optimizers import OPTIMIZERS

_BETA1, _BETA2, _TINY = 0.9, 0.999, 1e-8  # AdamW's usual constants


class Head(nn.Module):
    """Embeddings (b, d) to logits (b, classes) through `hidden` rectified units."""

    def __init__(self, d: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.d, self.hidden, self.classes = self.sizes = (d, hidden, classes)
        self.inner = nn.Linear(d, hidden)
        self.outer = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(x)))


def build_head(d: int, hidden: int, classes: int, generator: torch.Generator | None) -> Head:
    """A head; for its weights see `initialise`."""
    with torch.device("meta"):
        head = Head(d, hidden, classes)
    initialise(head, generator)
    return head


def _views(flat: Tensor, sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four parameters of a head of `sizes` (d, hidden, classes) as views of one vector, in their usual order."""
    d, hidden, classes = sizes
    w1, b1, w2, b2 = flat.split([hidden * d, hidden, classes * hidden, classes])
    return w1.view(hidden, d), b1, w2.view(classes, hidden), b2


@torch.no_grad()
def loss_and_gradient(weights: tuple[Tensor, ...], gradient: tuple[Tensor, ...], x: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy of a batch; writes the gradient of each parameter into `gradient`."""
    w1, b1, w2, b2 = weights
    g_w1, g_b1, g_w2, g_b2 = gradient
    hidden = torch.addmm(b1, x, w1.T).relu_()  # (b, hidden)
    log_p = torch.log_softmax(torch.addmm(b2, hidden, w2.T), dim=1)  # (b, classes)
    rows = y[:, None]
    loss = -log_p.gather(1, rows).mean()
    error = log_p.exp_()
    error.scatter_add_(1, rows, error.new_full((1, 1), -1.0).expand(rows.shape)).div_(len(y))
    torch.mm(error.T, hidden, out=g_w2)
    torch.sum(error, dim=0, out=g_b2)
    back = torch.mm(error, w2).mul_(hidden > 0)
    torch.mm(back.T, x, out=g_w1)
    torch.sum(back, dim=0, out=g_b1)
    return loss


@torch.no_grad()
def train_head(head: Head, x: np.ndarray, y: np.ndarray, **options: Any) -> float:
    """`train_flat` of `head`, in place, on embeddings x (m, d) float32 with labels y (m,) int64."""
    inputs = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    labels = torch.from_numpy(np.ascontiguousarray(y, dtype=np.int64))
    parameters = list(head.parameters())
    flat = torch.cat([p.view(-1) for p in parameters])
    loss = train_flat(flat, head.sizes, inputs, labels, **options)
    for parameter, trained in zip(parameters, _views(flat, head.sizes)):
        parameter.copy_(trained)
    return loss


@torch.no_grad()
def train_flat(
    flat: Tensor,
    sizes: tuple[int, int, int],
    inputs: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    optimizer: str,
    generator: torch.Generator,
    proximal_mu: float = 0.0,
    momentum: float = 0.9,
) -> float:
    """Train a head given as one vector of its weights, in place; returns the mean batch loss.

    One local training of a federated client: the optimiser starts afresh at each call (see `train_simclr`), and
    `proximal_mu` pulls towards the weights received. Weight decay is decoupled for `adamw`, added to the gradient for
    `sgd` (Nesterov momentum), and applies to all parameters. Without labels the head stays as it is; the loss is 0.
    """
    if optimizer not in OPTIMIZERS:
        raise UserError(f"unknown optimizer {optimizer!r}; choose one of {', '.join(OPTIMIZERS)}")
    m = len(labels)
    if m == 0 or epochs < 1:
        return 0.0
    received = flat.clone() if proximal_mu else flat
    slope = torch.empty_like(flat)
    weights, gradient = _views(flat, sizes), _views(slope, sizes)
    parts_of = batch_sizes(m, batch_size)
    first, second = torch.zeros_like(flat), torch.zeros_like(flat) if optimizer == "adamw" else flat
    total, step = torch.zeros(()), 0
    for _ in range(epochs):
        # A single batch is the whole set: its order does not matter, so nothing is shuffled or copied.
        parts = [None] if len(parts_of) == 1 else torch.randperm(m, generator=generator).split(parts_of)
        for part in parts:
            bx, by = (inputs, labels) if part is None else (inputs[part], labels[part])
            total += loss_and_gradient(weights, gradient, bx, by)
            step += 1
            if proximal_mu:
                slope.add_(flat - received, alpha=proximal_mu)
            if optimizer == "sgd":
                if weight_decay:
                    slope.add_(flat, alpha=weight_decay)
                first.mul_(momentum).add_(slope)
                flat.sub_(slope.add_(first, alpha=momentum), alpha=lr)
            else:
                flat.mul_(1.0 - lr * weight_decay)
                first.lerp_(slope, 1.0 - _BETA1)
                second.mul_(_BETA2).addcmul_(slope, slope, value=1.0 - _BETA2)
                scale = (1.0 - _BETA2**step) ** 0.5
                flat.addcdiv_(first, second.sqrt().div_(scale).add_(_TINY), value=-lr / (1.0 - _BETA1**step))
    return check_finite(total.item() / step, lr)


def predict_proba(head: Head, x: np.ndarray) -> np.ndarray:
    """Class probabilities (n, classes) float32 of embeddings (n, d)."""
    with torch.inference_mode():
        return torch.softmax(head(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))), dim=1).numpy()
