"""TypiClust: the most typical sample of each cluster, clusters with the fewest labels first."""

from __future__ import annotations

import functools

import numba
import numpy as np
import torch

from cofal.selection.approx import coverage_loss, sample_size, sampled
from cofal.selection.evenness import evened
from cofal.selection.kernels import make_kernel
from cofal.selection.kinds import beside_kinds
from cofal.selection.kmeans import kmeans
from cofal.selection.pool import Budgets, Picked, Pool

MAX_CLUSTERS = 500
SMALL_CLUSTER = 5  # clusters of at most this many points come last
NEIGHBORS = 20
TIE = 1e-12  # mean squared distances closer than this are equal
_ROWS, _COLUMNS = 1024, 8192  # a tile of distances within a cluster, float64: 64 MiB


def typiclust(
    pool: Pool, budgets: Budgets, rng: np.random.Generator, *, approx: bool | int = False, kinds: bool = False
) -> Picked:
    """Rows in the order picked.

    The pooled rows, labelled ones included, form min(labelled + budget, 500) k-means clusters. Each pick goes to the
    cluster of the least (is it small, labels in it, minus its size), a pick counting as a label from then on, so a
    budget above the number of clusters visits them again. There it takes the feasible row of the highest typicality,
    1 / (mean squared distance to its min(20, half the cluster) nearest neighbours in the cluster). A cluster without a
    feasible row is passed over. Ties go to the more typical row, then to the lowest (client, position).

    With `approx` (True, or a number of rows) the picks are the exact ones of a sample of that many rows. What is lost
    is measured by the mean over other rows of exp(-squared distance to the nearest pick). With `kinds` rows are seen
    evened out (`evenness.py`), and clusters are of rows likely of one kind that lie together (`kinds.py`).
    """
    size = sample_size(approx)
    if budgets.total == 0:
        return Picked(np.empty(0, np.int64), coverage_loss=0.0 if size else None)
    if size and size < pool.n:
        rows = sampled(pool, budgets, size, rng)
        exact = functools.partial(typiclust, rng=rng, kinds=kinds)
        picks = rows[exact(pool.subset(rows), budgets).rows]
        kernel = make_kernel("gaussian", pool.d, 1.0)
        loss = coverage_loss(pool, budgets, picks, kernel, rng, exact)
        return Picked(picks, coverage_loss=loss)
    picks = np.empty(budgets.total, np.int64)
    k = min(int(pool.labeled.sum()) + budgets.total, MAX_CLUSTERS)
    unit = pool.in_memory()
    labels = kmeans(beside_kinds(unit) if kinds else unit, k, rng, by=unit).labels
    if kinds:
        unit = evened(unit)
    members = np.split(np.argsort(labels, kind="stable"), np.bincount(labels, minlength=k).cumsum()[:-1])
    spread = np.empty(pool.n)  # mean squared distance to the neighbours: 1 / typicality
    ranked = []  # of each cluster, its rows from the most typical down
    for rows in members:
        spread[rows] = _spread(unit, rows)
        ranked.append(rows[_order_with_ties(spread[rows])])

    sizes = np.array([len(rows) for rows in members])
    labels_in = np.bincount(labels[pool.labeled], minlength=k)
    left = budgets.per_client.copy()
    taken = pool.labeled.copy()
    head = np.zeros(k, np.int64)  # the first row of each cluster's ranking that may still be feasible
    turn = (sizes <= SMALL_CLUSTER) * 2**60 + labels_in * 2**40 - sizes  # the cluster of the lowest is next
    for pick in range(budgets.total):
        while True:
            tied = np.flatnonzero(turn == turn.min())
            for cluster in tied:
                rows = ranked[cluster]
                # What is infeasible stays so: budgets only fall, and a row once taken is never given back.
                while head[cluster] < len(rows) and (
                    taken[rows[head[cluster]]] or left[pool.owner[rows[head[cluster]]]] == 0
                ):
                    head[cluster] += 1
                if head[cluster] == len(rows):
                    turn[cluster] = np.iinfo(np.int64).max
            tied = tied[head[tied] < sizes[tied]]
            if len(tied):
                break
        candidates = np.array([ranked[cluster][head[cluster]] for cluster in tied])
        row = candidates[_order_with_ties(spread[candidates], candidates)[0]]
        picks[pick] = row
        taken[row] = True
        left[pool.owner[row]] -= 1
        turn[labels[row]] += 2**40
    return Picked(picks, coverage_loss=0.0 if size else None)


def _order_with_ties(values: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """Positions of `values` from the smallest up; those equal within TIE by their `rows` (default: as they stand)."""
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.concatenate([[0], np.cumsum(np.diff(values[order]) > TIE)]) if len(values) else []
    return np.lexsort((np.arange(len(values)) if rows is None else rows, rank))


def _spread(unit: Pool, rows: np.ndarray) -> np.ndarray:
    """(len(rows),) float64 mean squared distance of each row of a cluster to its nearest neighbours in it."""
    neighbors = min(NEIGHBORS, len(rows) // 2)
    return _neighbor_distances(unit, rows, neighbors) if neighbors else np.zeros(len(rows))


def _neighbor_distances(unit: Pool, rows: np.ndarray, neighbors: int) -> np.ndarray:
    """(len(rows),) float64 mean squared distance of each row to the `neighbors` nearest others among `rows`.

    In float64, so that neither the number of threads nor the tiles decide between near-equal rows.
    """
    whole = unit.rows(rows).double() if len(rows) <= _COLUMNS else None  # a larger cluster is read tile by tile

    def tile(start: int, size: int) -> torch.Tensor:
        return unit.rows(rows[start : start + size]).double() if whole is None else whole[start : start + size]

    means = np.empty(len(rows))
    for start in range(0, len(rows), _ROWS):
        x = tile(start, _ROWS)
        own = torch.arange(len(x), device=unit.device)
        nearest = np.full((len(x), neighbors), np.inf)
        for first in range(0, len(rows), _COLUMNS):
            y = tile(first, _COLUMNS)
            squares = torch.addmm((y * y).sum(1), x, y.T, alpha=-2)  # (rows, columns) squared distances less |x|^2
            if first <= start < first + _COLUMNS:  # _COLUMNS is a multiple of _ROWS: a row tile lies in one column tile
                squares[own, start - first + own] = torch.inf
            _keep_smallest(squares.cpu().numpy(), nearest)
        means[start : start + _ROWS] = np.maximum((x * x).sum(1).cpu().numpy() + nearest.mean(1), 0)
    return means


@numba.njit(cache=True)
def _keep_smallest(values: np.ndarray, smallest: np.ndarray) -> None:
    """Merge the rows of `values` (m, c) into the rows of `smallest` (m, k), which are ascending and stay so."""
    k = smallest.shape[1]
    for i in range(len(values)):
        kept = smallest[i]
        for value in values[i]:
            if value < kept[k - 1]:
                j = k - 1
                while j > 0 and kept[j - 1] > value:
                    kept[j] = kept[j - 1]
                    j -= 1
                kept[j] = value
