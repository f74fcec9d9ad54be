"""Gradient embeddings of a head: the gradient of its last layer if its own prediction were the label.

For one row that is the outer product of two short vectors, the error (classes,) and the hidden units (hidden,), so it
is kept as these two factors and never written out: 100 classes and 256 units would be 25,600 numbers a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from cofal.learning.head import Head


@dataclass(frozen=True)
class Gradients:
    """Row i is the outer product error[i] x hidden[i]."""

    error: np.ndarray  # (n, classes) float32
    hidden: np.ndarray  # (n, hidden) float32

    @cached_property
    def norms(self) -> np.ndarray:
        """(n,) squared lengths."""
        return (self.error**2).sum(axis=1) * (self.hidden**2).sum(axis=1)

    def distances(self, row: int) -> np.ndarray:
        """(n,) squared distances of all rows to one."""
        products = (self.error @ self.error[row]) * (self.hidden @ self.hidden[row])
        return np.maximum(self.norms + self.norms[row] - 2 * products, 0)

    def sketch(self, width: int, rng: np.random.Generator) -> np.ndarray:
        """(n, width) float32 whose inner products are, on average, those of the whole rows; exact if these are shorter.

        Each factor is multiplied by random signs and the two results by each other, which is a random projection of
        the outer product at the cost of projecting its factors.
        """
        n, classes = self.error.shape
        hidden = self.hidden.shape[1]
        if classes * hidden <= width:
            return (self.error[:, :, None] * self.hidden[:, None, :]).reshape(n, classes * hidden)
        left = rng.choice(np.array([-1, 1], np.float32), size=(classes, width))
        right = rng.choice(np.array([-1, 1], np.float32), size=(hidden, width))
        return (self.error @ left) * (self.hidden @ right) / np.float32(np.sqrt(width))


def gradient_embeddings(head: Head, x: np.ndarray) -> Gradients:
    """Of embeddings x (n, d), under `head`."""
    with torch.inference_mode():
        hidden = torch.relu(head.inner(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))))
        error = torch.softmax(head.outer(hidden), dim=1)
        error[torch.arange(len(error)), error.argmax(dim=1)] -= 1
        return Gradients(error.numpy(), hidden.numpy())
