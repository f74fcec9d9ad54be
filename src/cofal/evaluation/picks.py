"""What can be said of picks without training on them: cells covered, redundancy between clients, balance of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cofal.rng import generator
from cofal.selection.kmeans import kmeans
from cofal.selection.pool import Pool

Order = Sequence[tuple[int, int]]  # (client, position)


def divide_into_cells(embeddings: Sequence[np.ndarray], cells: int, seed: int = 0) -> list[np.ndarray]:
    """The cell (0 .. cells - 1) of every row, one (n_k,) array per client: k-means over the rows of all clients."""
    pool = Pool(embeddings)
    labels = kmeans(pool, cells, generator(seed, "cells")).labels.astype(np.int64)
    return [labels[a:b] for a, b in zip(pool.offsets[:-1], pool.offsets[1:])]


def histograms(cells_of: Sequence[np.ndarray], cells: int) -> np.ndarray:
    """(clients, cells) int64 rows of each client in each cell."""
    return np.stack([np.bincount(own, minlength=cells) for own in cells_of])


@dataclass(frozen=True)
class Measures:
    """Of one set of picks."""

    coverage: int  # Phi(S): cells that have a pick
    local_coverage: int  # sum over clients of Phi(S_k)
    redundancy: int  # their difference: cells paid for by more than one client, counted for each beyond the first
    classes_found: int  # classes that have a pick
    class_balance: float  # entropy of the picks' classes over its largest value: 1 balanced, 0 one class


def measure(order: Order, cells_of: Sequence[np.ndarray], labels: Sequence[np.ndarray], classes: int) -> Measures:
    """Measures of the picks `order`; `cells_of` from `divide_into_cells`, `labels` the true class of every row."""
    visited = {(client, int(cells_of[client][row])) for client, row in order}
    covered = {cell for _, cell in visited}
    counts = np.bincount([int(labels[client][row]) for client, row in order] or [0], minlength=classes)
    counts = counts if len(order) else np.zeros(classes, dtype=np.int64)
    return Measures(
        coverage=len(covered),
        local_coverage=len(visited),
        redundancy=len(visited) - len(covered),
        classes_found=int((counts > 0).sum()),
        class_balance=class_balance(counts),
    )


def class_balance(counts: np.ndarray) -> float:
    """Entropy of the shares counts / sum over log(classes), in [0, 1]; 0 without picks or with one class in all."""
    total = counts.sum()
    if total == 0 or len(counts) < 2:
        return 0.0
    shares = counts[counts > 0] / total
    return float(-(shares * np.log(shares)).sum() / np.log(len(counts)))
