"""Federated k-means: clients send sums and counts of their rows by cluster, and never a row.

What is done with the clusters lives with whoever asks for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cofal.selection.aggregate.bounds import Asked, vectors
from cofal.selection.aggregate.cells import CELLS, PLANNED, answer_cells, canonical, nearest, sums_by_label, told_sums
from cofal.selection.aggregate.exchange import (
    Arrays,
    Consortium,
    Holder,
    Question,
    fixed,
    fraction_bits,
    real,
    told_counts,
)
from cofal.selection.aggregate.ward import ward
from cofal.selection.numbers import MOST_TRIPS, check_whole

SETTLED = 1e-3  # the iterations end when the mean squared distance falls by no larger share
_SERVER_ITERATIONS = 50  # of the weighted k-means on the clients' cells, which costs no message
_CHOICE, _CELLS = 4, 300  # a client is asked for so many cells a cluster, but no more than these unless k is larger;
# for finer cells where all clients together would have fewer
_MERGED = 6000  # cells from which the first centres are made; of more, so many drawn at random


@dataclass(frozen=True)
class Clusters:
    """What the coordinator knows at the end."""

    centers: np.ndarray  # (k, d) float32
    sizes: np.ndarray  # (k,) int64 rows that were spoken of; 0 where all clients kept silent
    labeled: np.ndarray  # (k,) int64 labelled rows, of each client in steps of `min_region`: 1 stands for 1 to 5
    cells: np.ndarray  # (k,) int64 rows of the clients' cells that are nearest to each centre
    told: Sequence[Arrays] = ()  # each client's cells: "means" (c, d) float16 and "counts" (c,) int32


def check_iterations(iterations: Any) -> None:
    check_whole("iterations", iterations, "k-means round trips", 2, MOST_TRIPS, " (15 if unsure)")


def federated_kmeans(
    consortium: Consortium, k: int, rng: np.random.Generator, *, min_region: int, iterations: int
) -> Generator[Question, Any, Clusters]:
    """At most `k` clusters of all clients' rows in at most `iterations` round trips.

    The first asks each client for cells of its own; a weighted k-means on those gives the seeds. Every other one asks
    for the sums and counts of the clusters. A cluster about which all clients keep silent is put on the cell that the
    centres serve worst. There are fewer clusters than `k` when the clients have fewer cells to speak of.
    """
    most = max(k, min(_CHOICE * k, _CELLS))
    fine = sum(size // (PLANNED * min_region) for size in consortium.sizes) < _CHOICE * k
    answers = yield Question("cells", numbers={"most": most, "min_region": min_region, "fine": int(fine)})
    cells = np.concatenate([answer["means"] for answer in answers]).astype(np.float64)
    weights = np.maximum(1.0, np.concatenate([answer["counts"] for answer in answers]))  # noise may take them below
    if len(cells) == 0:
        cells, weights = np.zeros((1, consortium.dimensions)), np.ones(1)
    centers = seeds(cells, weights, min(k, len(cells)), rng).astype(np.float32)
    bits = fraction_bits(sum(consortium.sizes))
    before, told = np.inf, []
    for iteration in range(2, iterations + 1):
        told.append(centers)
        numbers = {"bits": bits, "min_region": min_region}
        totals = yield Question("sums", {"centers": np.stack(told)}, numbers, summed=True)
        sums, counts = real(totals["sums"], bits), totals["counts"]
        held = (counts > 0) & sums.any(axis=1)  # counts with noise may be of a cluster without rows
        means = centers.astype(np.float64)
        spread = (counts * (1 + (means**2).sum(1)) - 2 * (means * sums).sum(1)).sum() / max(1, counts.sum())
        means[held] = sums[held] / counts[held, None]
        means /= np.maximum(1, np.linalg.norm(means, axis=1, keepdims=True))  # rows are unit: only noise goes beyond
        near = np.bincount(_distances(cells, means).argmin(1), weights, minlength=len(means)).astype(np.int64)
        labeled = -(-totals["labeled"] // min_region)  # told in steps of it; noise may leave it between two
        clusters = Clusters(means.astype(np.float32), counts, labeled, near, answers)
        if spread >= (1 - SETTLED) * before:
            break
        before = spread
        if iteration < iterations:
            _refill(means, np.flatnonzero(~held), cells, weights)
        centers = means.astype(np.float32)
    return clusters


ASKED = {"cells": CELLS, "sums": Asked({"centers": vectors("iterations", "clusters")}, ("bits",), summed=True)}


def answer_kmeans(holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> Arrays:
    """A client's part in `federated_kmeans`; clusters of fewer than `min_region` of its rows are kept silent about.

    Labelled rows are counted in steps of `min_region`, upwards: whether a cluster has any decides whose turn it is.
    Where counts get noise, it is made for one row in one cluster: rows are counted by the nearest centre.
    """
    if kind == "cells":
        return answer_cells(holder, numbers)
    rows, taken, _ = canonical(holder)
    centers, least = arrays["centers"], int(numbers["min_region"])
    k = centers.shape[1]
    clusters = _told_clusters(holder, centers, least)
    spoken = clusters >= 0
    sums, counts = sums_by_label(rows[spoken], clusters[spoken], k)
    labels, _ = nearest(rows, centers[-1])
    if holder.noise is not None:
        counts = np.bincount(labels, minlength=k)
    labeled = np.bincount(labels[taken], minlength=k)
    told = told_counts(holder, {"counts": counts, "labeled": labeled}, least, unsuppressed=("labeled",))
    told["labeled"] = -(-np.maximum(told["labeled"], 0) // least) * least
    return {"sums": fixed(told_sums(holder, sums, least), int(numbers["bits"])), **told}


def _told_clusters(holder: Holder, centers: np.ndarray, least: int) -> np.ndarray:
    """(n,) the cluster as whose member each row is told of, -1 for none, after the centres (t, k, d) of t iterations.

    What was told in earlier iterations is worked out again, or remembered.
    """
    rows, _, _ = canonical(holder)
    groups, homes = np.full(len(rows), -1), np.empty(0, np.int64)
    past = hashlib.sha256(repr(least).encode())
    for each in centers:
        past.update(np.ascontiguousarray(each).tobytes())
        key = ("told clusters", past.digest())
        if key not in holder.cache:
            holder.cache[key] = regroup(groups, homes, nearest(rows, each)[0], least)
        groups, homes = holder.cache[key]
    clusters: np.ndarray = np.append(homes, -1)[groups]
    return clusters


def regroup(groups: np.ndarray, homes: np.ndarray, labels: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Groups (n,) of rows that are told of together, and the cluster (g,) of each, after rows moved to `labels` (n,).

    A row that moved alone would be the difference of two sums. So rows move `least` or more at a time, from one group
    (-1: not told of yet) to one cluster, and leave none or as many behind; the others are told of where they were. Then
    all sums ever told are sums of whole groups of one partition, each of at least `least` rows.
    """
    groups, moved = groups.copy(), list(homes)
    sizes = np.bincount(groups + 1, minlength=len(homes) + 1)[1:].tolist()
    pairs, which, counts = np.unique(np.stack([groups, labels]), axis=1, return_inverse=True, return_counts=True)
    members = np.split(np.argsort(which.ravel(), kind="stable"), counts.cumsum()[:-1])
    for group, label, count, rows in zip(*pairs.tolist(), counts.tolist(), members):
        if count < least or (group >= 0 and moved[group] == label):
            continue
        if group >= 0 and count == sizes[group]:
            moved[group] = label
        elif group < 0 or sizes[group] - count >= least:
            if group >= 0:
                sizes[group] -= count
            groups[rows] = len(moved)
            moved.append(label)
    return groups, np.array(moved, np.int64)


def seeds(cells: np.ndarray, weights: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """(k, d) centres of `cells` (m, d), m >= k, of `weights` (m,): Ward's method, and from there weighted k-means."""
    some = np.sort(rng.permutation(len(cells))[: max(k, _MERGED)])
    groups = ward(cells[some], weights[some], k)
    sums, _ = sums_by_label(cells[some] * weights[some, None], groups, k)
    return _kmeans(cells, weights, sums / np.bincount(groups, weights[some])[:, None])


def _kmeans(cells: np.ndarray, weights: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """The centres after Lloyd's iterations over weighted cells."""
    labels = np.full(len(cells), -1)
    for _ in range(_SERVER_ITERATIONS):
        found = _distances(cells, centers).argmin(1)
        if (found == labels).all():
            break
        labels = found
        sums, _ = sums_by_label(cells * weights[:, None], labels, len(centers))
        mass = np.bincount(labels, weights, minlength=len(centers))
        centers = np.where(mass[:, None] > 0, sums / np.maximum(mass, 1)[:, None], centers)
    return centers


def _refill(means: np.ndarray, empty: np.ndarray, cells: np.ndarray, weights: np.ndarray) -> None:
    """Put each of the `empty` means on the cell that adds most to the distances: weight times squared distance."""
    held = np.delete(np.arange(len(means)), empty)
    if len(empty) == 0 or len(held) == 0:
        return
    squares = _distances(cells, means[held]).min(1)
    for cluster in empty:
        worst = int((weights * squares).argmax())
        if squares[worst] <= 0:
            return
        means[cluster] = cells[worst]
        squares = np.minimum(squares, ((cells - cells[worst]) ** 2).sum(1))


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(len(a), len(b)) squared distances, float64."""
    squares: np.ndarray = np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T, 0)
    return squares
