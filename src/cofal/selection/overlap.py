"""How alike the clients are, from the numbers of their rows in common cells and from nothing else.

The measure is a ratio of two chances: that a row of one client and a row of another share a cell, over that two rows of
one client do. Clients drawn from one distribution have overlap 1 whatever the cells are; clients without a common cell
have overlap 0. What is decided by it lives in `auto.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cofal.selection.kmeans import kmeans
from cofal.selection.pool import Pool

CELLS = 30
ROWS_PER_CELL = 12  # of the smallest client, at least on average: below, chance decides which cells a client has
FEWEST_CELLS = 8
RESAMPLES = 200  # of the rows, for the uncertainty
Z95 = 1.96


@dataclass(frozen=True)
class Overlap:
    """What the cells tell of a federation."""

    counts: np.ndarray  # (clients, cells) int64 rows of each client in each cell
    matrix: np.ndarray  # (clients, clients) float64, symmetric, ones on the diagonal; may exceed 1 by chance
    mean: float  # over pairs of clients; 1.0 for a single client
    error: float  # standard error of `mean`: how far another sample of rows would move it

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the mean, within 0 and 1."""
        return max(0.0, min(1.0, self.mean - Z95 * self.error)), max(0.0, min(1.0, self.mean + Z95 * self.error))


def number_of_cells(sizes: np.ndarray) -> int:
    """As many cells as the rows of the smaller clients can fill, at most 30; `sizes` (clients,) are rows per client."""
    held = sizes[sizes > 0]
    if len(held) == 0:
        return 1
    return int(min(max(np.median(held) // ROWS_PER_CELL, FEWEST_CELLS), CELLS, held.sum()))


def cell_counts(pool: Pool, cells: int, rng: np.random.Generator) -> np.ndarray:
    """(clients, cells) int64: the rows of each client in each k-means cell of the union."""
    counts = np.zeros((pool.clients, cells), np.int64)
    np.add.at(counts, (pool.owner, kmeans(pool, cells, rng).labels), 1)
    return counts


def measure(counts: np.ndarray, rng: np.random.Generator) -> Overlap:
    """The overlap of the clients whose rows fall into cells as `counts` (clients, cells) says."""
    counts = np.asarray(counts, np.int64)
    matrix = overlap_matrix(counts)
    return Overlap(counts, matrix, float(mean_of_pairs(matrix)), _standard_error(counts, rng))


def overlap_matrix(counts: np.ndarray) -> np.ndarray:
    """(..., clients, clients): chance of a common cell between two clients over the mean of their chances within.

    `counts` is (..., clients, cells). The chances within are of two *different* rows, so that the ratio is not biased
    by small clients. A client with fewer than two rows, or without two rows in one cell, has nothing to compare with:
    it counts as like those who have not either.
    """
    rows = counts.sum(-1).astype(np.float64)
    shares = counts / np.maximum(rows, 1)[..., None]
    within = (counts * (counts - 1.0)).sum(-1) / np.maximum(rows * (rows - 1), 1)
    across = shares @ np.swapaxes(shares, -1, -2)
    expected = (within[..., :, None] + within[..., None, :]) / 2
    few = rows < 2
    unknown = few[..., :, None] | few[..., None, :] | (expected <= 0)
    own = np.eye(counts.shape[-2], dtype=np.bool_)
    matrix: np.ndarray = np.where(unknown | own, 1.0, across / np.where(unknown, 1.0, expected))
    return matrix


def mean_of_pairs(matrix: np.ndarray) -> np.ndarray:
    """(...,) mean of what is off the diagonal of `matrix` (..., clients, clients); 1 if nothing is."""
    clients = matrix.shape[-1]
    if clients < 2:
        return np.ones(matrix.shape[:-2])
    mean: np.ndarray = (matrix.sum((-1, -2)) - np.trace(matrix, axis1=-2, axis2=-1)) / (clients * (clients - 1))
    return mean


def resampled(counts: np.ndarray, times: int, rng: np.random.Generator) -> np.ndarray:
    """(times, clients, cells) counts of samples as large as each client's, drawn from its rows with replacement."""
    again = np.zeros((times, *counts.shape), np.int64)
    for client, own in enumerate(counts):
        if (rows := int(own.sum())) > 0:
            again[:, client] = rng.multinomial(rows, own / rows, size=times)
    return again


def _standard_error(counts: np.ndarray, rng: np.random.Generator) -> float:
    """Standard deviation of the mean overlap over samples of rows drawn again."""
    return float(mean_of_pairs(overlap_matrix(resampled(counts, RESAMPLES, rng))).std())
