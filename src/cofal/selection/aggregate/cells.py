"""A client's rows as its answers see them: in an order that comes from their values, and cut into cells that are large
enough to be spoken of. What the cells are used for belongs to the selectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cofal.rng import generator
from cofal.selection.aggregate.bounds import Asked
from cofal.selection.aggregate.exchange import Arrays, Holder, told_counts
from cofal.selection.kmeans import content_hash, kmeans
from cofal.selection.numbers import MOST, check_whole
from cofal.selection.pool import Pool

TILE = 2048  # rows compared with centres at once
PLANNED = 2  # a cell is planned to hold this many times the fewest rows that may be spoken of
BLUR = 3.0  # standard deviations of the client's rows: the step in which sums are told
FINE = 0.6  # the same where cells are scarce: most come out too small and are dissolved, which leaves a third more


def check_min_region(min_region: Any) -> None:
    check_whole("min_region", min_region, "samples", 1, MOST, " (5 if unsure)")


def canonical(holder: Holder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (n, d), which of them are taken (n,), and their positions (n,), in an order that depends on values alone.

    Everything is computed in this order, so that answers and picked samples stay the same when a client shuffles its
    files; of identical rows the free ones come first.
    """
    if "canonical" not in holder.cache:
        if len(holder.rows):
            order = np.lexsort((holder.taken, content_hash(Pool([holder.rows]), generator(0, "canonical"))))
        else:
            order = np.empty(0, np.int64)
        holder.cache["canonical"] = np.ascontiguousarray(holder.rows[order]), holder.taken[order], order
    found: tuple[np.ndarray, np.ndarray, np.ndarray] = holder.cache["canonical"]
    return found


def nearest(rows: np.ndarray, centers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each of `rows` (n, d): which of `centers` (k, d) is nearest (n,) int64, and the squared distance (n,) float32.

    Ties go to the first. Computed in tiles of fixed size, in float32.
    """
    labels, squares = np.empty(len(rows), np.int64), np.empty(len(rows), np.float32)
    factors = np.ascontiguousarray((-2 * centers).T, dtype=np.float32)
    offsets = (centers.astype(np.float64) ** 2).sum(1).astype(np.float32) + np.float32(1)
    for start in range(0, len(rows), TILE):
        scores = rows[start : start + TILE] @ factors
        scores += offsets
        labels[start : start + TILE] = scores.argmin(1)
        squares[start : start + TILE] = scores.min(1)
    return labels, np.maximum(squares, 0)


def sums_by_label(rows: np.ndarray, labels: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(k, d) float64 sums of the rows of each label, added in the order of the rows, and (k,) int64 counts."""
    counts = np.bincount(labels, minlength=k)
    sums = np.zeros((k, rows.shape[1]))
    held = np.flatnonzero(counts)
    if len(held):
        starts = (counts.cumsum() - counts)[held]
        sums[held] = np.add.reduceat(rows[np.argsort(labels, kind="stable")].astype(np.float64), starts, axis=0)
    return sums, counts


def told_sums(holder: Holder, sums: np.ndarray, least: int) -> np.ndarray:
    """Sums (m, d) of groups of the client's rows as they leave, in steps; as they are if single rows may be told of.

    Two groups that differ by a row are never told of in one selection, but several selections group the same rows anew.
    A sum told is off by 0.87 times the distance at which rows typically lie from their mean, so the difference of two
    is hardly more like the row in which they differ than the mean of their neighbours is. In every direction the step
    goes by how far the rows spread in it, or the few directions that hold most of the variance would show through. It
    is a power of two: how far they spread is no exact number that one row more would change.
    """
    if least <= 1 or len(sums) == 0:
        return sums
    if "steps" not in holder.cache:
        rows, _, _ = canonical(holder)
        spread = rows.std(0, dtype=np.float64) if len(rows) else np.zeros(sums.shape[1])
        holder.cache["steps"] = BLUR * 2.0 ** np.rint(np.log2(np.maximum(spread, 2.0**-30)))
    steps = holder.cache["steps"]
    told: np.ndarray = np.rint(sums / steps) * steps
    return told


def cells(holder: Holder, most: int, min_region: int, fine: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The client's rows in at most `most` cells of at least `min_region` rows: means (c, d) float64 and counts (c,).

    K-means of its own, the same in every selection; cells that come out too small are dissolved. `fine` asks for as
    many as can be. A client with fewer rows than `min_region` has no cell to speak of. The means are of `told_sums`.
    """
    rows, _, _ = canonical(holder)
    if len(rows) < min_region or most < 1:
        return np.empty((0, holder.rows.shape[1])), np.empty(0, np.int64)
    planned = max(1, int((FINE if fine else PLANNED) * min_region))
    k = min(most, max(1, len(rows) // planned))
    found = kmeans(Pool([rows]).in_memory(), k, generator(0, "cells"))
    labels = _without_small(rows, found.labels.astype(np.int64), min_region)
    sums, counts = sums_by_label(rows, labels, k)
    held = counts > 0
    return told_sums(holder, sums[held], min_region) / counts[held, None], counts[held]


def _without_small(rows: np.ndarray, labels: np.ndarray, least: int) -> np.ndarray:
    """Labels (n,) after the smallest cell was dissolved, again and again, until none has fewer than `least` rows.

    Its rows go to the nearest of the other cells' means. One at a time, so that neighbours too small by themselves
    join into one that is large enough: as many cells are left as can be.
    """
    labels = labels.copy()
    sums, counts = sums_by_label(rows, labels, int(labels.max()) + 1)
    counts[counts == 0] = len(rows) + 1  # nothing to dissolve
    while counts[smallest := int(counts.argmin())] < least:
        members = np.flatnonzero(labels == smallest)
        counts[smallest] = len(rows) + 1
        kept = np.flatnonzero(counts <= len(rows))
        labels[members] = kept[nearest(rows[members], sums[kept] / counts[kept, None])[0]]
        for row in members:
            sums[labels[row]] += rows[row]
            counts[labels[row]] += 1
    return labels


CELLS = Asked(numbers=("fine", "most"))  # the question that `answer_cells` answers


def answer_cells(holder: Holder, numbers: Mapping[str, float]) -> Arrays:
    """Means of the client's cells, rounded so that all compute with the very same numbers, and the rows in each.

    Where counts get noise, rows are counted by the nearest of the means told: the client's own k-means may place many
    rows otherwise for one row less, which no noise for one row hides.
    """
    key = "cells", tuple(sorted(numbers.items()))
    if key not in holder.cache:
        most, min_region = int(numbers["most"]), int(numbers["min_region"])
        holder.cache[key] = cells(holder, most, min_region, fine=bool(numbers["fine"]))
    means, counts = holder.cache[key]
    told = means.astype(np.float16)
    if holder.noise is not None and len(told):
        counts = np.bincount(nearest(canonical(holder)[0], told.astype(np.float32))[0], minlength=len(told))
    return {"means": told, **told_counts(holder, {"counts": counts}, numbers["min_region"])}
