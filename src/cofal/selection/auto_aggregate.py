"""The measurement behind `auto` from aggregates: sums and counts of a federated k-means, then each client's histogram.

Both halves are written like those of an aggregate selector (`aggregate/exchange.py`), so that any carrier of questions
serves. What a client tells beyond the k-means: its rows in each cell (silent below `min_region`) and one number, how
blurred its own rows are.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from cofal.rng import generator
from cofal.selection.aggregate.cells import canonical, check_min_region, nearest
from cofal.selection.aggregate.exchange import Arrays, Consortium, Holder, Question
from cofal.selection.aggregate.kmeans import answer_kmeans, federated_kmeans
from cofal.selection.auto import Decision, settle
from cofal.selection.blur import MOST, blur
from cofal.selection.overlap import number_of_cells
from cofal.selection.pool import Pool

ITERATIONS = 6  # round trips of the k-means: cells need not be the best, only the same for all
LEAST = 0.1  # clear overlap below which choosing together, though harmless, is not worth its round trips
_STEP = 0.01  # of the blur that a client tells


def likeness(
    consortium: Consortium, rng: np.random.Generator, *, min_region: int = 5
) -> Generator[Question, Any, Decision]:
    """The decision, in at most 7 round trips."""
    check_min_region(min_region)
    cells = number_of_cells(np.array(consortium.sizes))
    clusters = yield from federated_kmeans(consortium, cells, rng, min_region=min_region, iterations=ITERATIONS)
    numbers = {"min_region": min_region, "seed": int(rng.integers(2**31))}
    answers = yield Question("likeness", {"centers": clusters.centers}, numbers)
    counts = np.stack([np.maximum(answer["counts"], 0) for answer in answers]).astype(np.int64)
    blurs = np.array([float(answer["blur"][0]) for answer in answers])
    mean = np.average(blurs, weights=counts.sum(1)) if counts.sum() else 0.0
    return settle(counts, float(np.clip(mean, 0, MOST)), rng, least=LEAST)


def answer_likeness(
    holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]
) -> Arrays:
    """A client's part in `likeness`."""
    if kind != "likeness":
        return answer_kmeans(holder, kind, arrays, numbers)
    rows, _, _ = canonical(holder)
    centers = arrays["centers"]
    counts = np.bincount(nearest(rows, centers)[0], minlength=len(centers))
    counts[counts < numbers["min_region"]] = 0
    own = blur(Pool([rows]), generator(int(numbers["seed"]), "blur")) if len(rows) else 0.0
    return {"counts": counts.astype(np.int32), "blur": np.array([round(own / _STEP) * _STEP], np.float32)}
