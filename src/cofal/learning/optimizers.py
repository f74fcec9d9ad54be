"""Optimisers by name: SGD and AdamW, by PyTorch's own update functions.

`torch.optim`'s classes load the whole of its compiler when the first one is made: 1.4 s of one core, which a site run
by Flower's own processes would pay for every message. The functions under them, called here, load nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from cofal.errors import UserError

OPTIMIZERS = ("sgd", "adamw")


class Optimizer:
    """Moves parameters by their gradients, which all of them must have."""

    def __init__(self, groups: list[SGDGroup] | list[AdamWGroup]) -> None:
        self.groups = groups

    def zero_grad(self) -> None:
        for group in self.groups:
            for parameter in group.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for group in self.groups:
            group.step([_gradient(parameter) for parameter in group.parameters])


class SGDGroup:
    """Parameters that are decayed alike, with Nesterov momentum, if any."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, weight_decay: float, momentum: float) -> None:
        self.parameters = parameters
        self._lr, self._weight_decay, self._momentum = lr, weight_decay, momentum
        self._velocities: list[Tensor | None] = [None] * len(parameters) if momentum else []

    def step(self, gradients: list[Tensor]) -> None:
        sgd(
            list(self.parameters), gradients, self._velocities, foreach=True, lr=self._lr,
            weight_decay=self._weight_decay, momentum=self._momentum, dampening=0.0, nesterov=self._momentum > 0,
            maximize=False,
        )  # fmt: skip


class AdamWGroup:
    """Parameters that are decayed alike; PyTorch's usual constants."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, weight_decay: float) -> None:
        self.parameters = parameters
        self._lr, self._weight_decay = lr, weight_decay
        self._means = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in parameters]
        self._squares = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in parameters]
        self._steps: list[Tensor] = [torch.zeros((), device=p.device) for p in parameters]

    def step(self, gradients: list[Tensor]) -> None:
        adamw(
            list(self.parameters), gradients, self._means, self._squares, [], self._steps, fused=True,
            amsgrad=False, beta1=0.9, beta2=0.999, eps=1e-8, maximize=False, lr=self._lr,
            weight_decay=self._weight_decay,
        )  # fmt: skip


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], *, lr: float, momentum: float, weight_decay: float
) -> Optimizer:
    """A fresh optimiser; biases and BatchNorm's parameters (one-dimensional) are not decayed."""
    for option, value in {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}.items():
        if not value >= 0:
            raise UserError(f"{option} = {value:g} cannot be used for training; choose 0 or more")
    parameters = list(parameters)
    parts = [
        ([p for p in parameters if p.ndim > 1], weight_decay),
        ([p for p in parameters if p.ndim <= 1], 0.0),
    ]
    if name == "sgd":
        return Optimizer([SGDGroup(part, lr, decay, momentum) for part, decay in parts if part])
    if name == "adamw":
        return Optimizer([AdamWGroup(part, lr, decay) for part, decay in parts if part])
    raise UserError(f"unknown optimizer {name!r}; choose one of {', '.join(OPTIMIZERS)}")


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None  # called after backward()
    return parameter.grad
