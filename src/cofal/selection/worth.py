"""Dividing one total budget by what each client's rows can add, where no shares are fixed."""

from __future__ import annotations

import numpy as np

from cofal.errors import UserError
from cofal.selection.kmeans import some_rows
from cofal.selection.overlap import cell_counts
from cofal.selection.pool import Pool
from cofal.selection.shares import divide

SAMPLE = 20_000  # rows that stand for larger pools
_ROWS_PER_CELL = 4
MOST_CELLS = SAMPLE // _ROWS_PER_CELL


def worth(counts: np.ndarray) -> np.ndarray:
    """(clients,) how many cells' worth of rows each client holds: the sum over cells of its share of the cell's rows.

    `counts` (clients, cells) are rows. If every cell shall get one label from one of its rows, this is how many of
    these labels are expected at each client. Rows that crowd into few cells are worth little, however many they are.
    """
    shares = counts / np.maximum(counts.sum(0), 1)
    total: np.ndarray = shares.sum(1)
    return total


def divide_by_worth(total: int, pool: Pool, rng: np.random.Generator) -> list[int]:
    """`total` labels as one budget per client, in proportion to their worth in as many cells as there are labels."""
    if total < 0:
        raise UserError(f"the budget is {total}; a budget is 0 or more")
    free = np.bincount(pool.owner[~pool.labeled], minlength=pool.clients)
    if total > free.sum():
        raise UserError(f"the budget is {total} but the clients have {free.sum()} unlabelled rows in all; lower it")
    if total == 0 or pool.clients == 1:
        return [total] if pool.clients == 1 else [0] * pool.clients
    return divide(total, weights_by_worth(pool, int(pool.labeled.sum()) + total, rng), free.tolist())


def weights_by_worth(pool: Pool, labels: int, rng: np.random.Generator) -> list[float]:
    """Each client's worth in as many cells as there are `labels`, above 0."""
    sample = some_rows(pool.in_memory(), SAMPLE, rng)
    return as_weights(cell_counts(sample, number_of_worth_cells(labels, sample.n), rng))


def number_of_worth_cells(labels: int, rows: int) -> int:
    """As many cells as labels, where the rows can fill them, `MOST_CELLS` at most."""
    return max(1, min(labels, rows // _ROWS_PER_CELL, MOST_CELLS))


def as_weights(counts: np.ndarray) -> list[float]:
    """Worth of each client by its rows in cells, `counts` (clients, cells), as weights above 0."""
    weights: list[float] = np.maximum(worth(counts), 1e-9).tolist()
    return weights
