"""`auto` from aggregates: the measurement behind it, and whoever then chooses alone, as exchanges between clients.

Both halves are written like those of an aggregate selector (`aggregate/exchange.py`), so that any carrier of questions
serves. What a client tells beyond a federated k-means: its rows in each cell (silent below `min_region`) and one
number, how blurred its own rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

import numpy as np

from cofal.rng import generator
from cofal.selection.aggregate.bounds import Asked, vectors, whole
from cofal.selection.aggregate.cells import canonical, check_min_region, nearest
from cofal.selection.aggregate.exchange import Arrays, Consortium, Coordinator, Holder, Method, Question, told_counts
from cofal.selection.aggregate.kmeans import ASKED, answer_kmeans, federated_kmeans
from cofal.selection.aggregate.select import METHODS, aggregate_method
from cofal.selection.auto import Decision, settle
from cofal.selection.blur import MOST, blur
from cofal.selection.maxherding import maxherding
from cofal.selection.numbers import MOST_TRIPS
from cofal.selection.overlap import number_of_cells
from cofal.selection.pool import Budgets, Picked, Pool
from cofal.selection.probcover import probcover
from cofal.selection.typiclust import typiclust
from cofal.selection.worth import MOST_CELLS

ITERATIONS = 6  # round trips of the k-means: cells need not be the best, only the same for all
LEAST = 0.1  # clear overlap below which choosing together, though harmless, is not worth its round trips
ALONE = "alone-"  # before a method: each client runs it on its own rows and keeps the picks to itself
_STEP = 0.01  # of the blur that a client tells
_SELECTORS: dict[str, Callable[..., Picked]] = {
    "probcover": probcover,
    "typiclust": typiclust,
    "maxherding": maxherding,
}


def likeness(
    consortium: Consortium, rng: np.random.Generator, *, min_region: int = 5
) -> Generator[Question, Any, Decision]:
    """The decision, in at most 7 round trips."""
    cells = number_of_cells(np.array(consortium.sizes))
    counts, blurs = yield from holdings(consortium, cells, rng, min_region=min_region)
    mean = np.average(blurs, weights=counts.sum(1)) if counts.sum() else 0.0
    return settle(counts, float(np.clip(mean, 0, MOST)), rng, least=LEAST)


def holdings(
    consortium: Consortium, cells: int, rng: np.random.Generator, *, min_region: int = 5, blurred: bool = True
) -> Generator[Question, Any, tuple[np.ndarray, np.ndarray]]:
    """(clients, cells) rows of each client in common cells, and (clients,) how blurred the rows of each are, if asked.

    Takes at most 7 round trips; there are fewer cells where the clients have fewer to speak of.
    """
    check_min_region(min_region)
    clusters = yield from federated_kmeans(consortium, cells, rng, min_region=min_region, iterations=ITERATIONS)
    numbers = {"min_region": min_region, "seed": int(rng.integers(2**31)), "blurred": int(blurred)}
    answers = yield Question("likeness", {"centers": clusters.centers}, numbers)
    counts = np.stack([np.maximum(answer["counts"], 0) for answer in answers]).astype(np.int64)
    return counts, np.array([float(answer["blur"][0]) for answer in answers])


def answer_likeness(
    holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]
) -> Arrays:
    """A client's part in `likeness` and `holdings`."""
    if kind != "likeness":
        return answer_kmeans(holder, kind, arrays, numbers)
    rows, _, _ = canonical(holder)
    centers = arrays["centers"]
    counts = np.bincount(nearest(rows, centers)[0], minlength=len(centers))
    own = 0.0
    if len(rows) and numbers["blurred"]:
        own = blur(Pool([rows]), generator(int(numbers["seed"]), "blur"))
    told = told_counts(holder, {"counts": counts}, numbers["min_region"])
    return {**told, "blur": np.array([round(own / _STEP) * _STEP], np.float32)}


def alone(
    consortium: Consortium,
    rng: np.random.Generator,
    *,
    seed: int,
    delta: float | str = "auto",
    lengthscale: float = 1.0,
) -> Coordinator:
    """Every client picks for itself, in one round trip; in the order returned they take turns."""
    numbers = {"seed": seed, "delta": 0.0 if isinstance(delta, str) else delta, "lengthscale": lengthscale}
    yield Question("alone", numbers=numbers, own=[{"budget": np.array([due], np.int32)} for due in consortium.budgets])
    longest = max(consortium.budgets, default=0)
    return [client for rank in range(longest) for client, due in enumerate(consortium.budgets) if rank < due]


def answer_alone(
    method: str, holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]
) -> Arrays:
    """A client's part in `alone`: nothing is told."""
    pool = Pool([holder.rows], [np.flatnonzero(holder.taken)])
    budgets = Budgets([int(arrays["budget"][0])], pool)
    params: dict[str, Any] = {}
    if method == "maxherding":
        params = {"lengthscale": float(numbers["lengthscale"])}
    if method == "probcover":
        params = {"delta": "auto" if numbers["delta"] == 0 else float(numbers["delta"])}
    rng = generator(int(numbers["seed"]), "select")
    picked = _SELECTORS[method](pool, budgets, rng, **params) if budgets.total else Picked(np.empty(0, np.int64))
    holder.picked = picked.rows
    return {}


def halves(name: str) -> Method:
    """Both halves of whatever a site can be asked in an aggregate selection: a selector's, or one of these."""
    if name == "likeness":
        asked = ASKED | {"likeness": Asked({"centers": vectors("clusters")}, ("blurred", "seed"))}
        most = {"clusters": MOST_CELLS, "iterations": MOST_TRIPS}
        return Method(likeness, answer_likeness, {"counts": True, "labeled": True}, asked, most)  # type: ignore[arg-type]
    method = name.removeprefix(ALONE)
    if name.startswith(ALONE) and method in METHODS:
        asked = {"alone": Asked({"budget": whole(1)}, ("delta", "lengthscale", "seed"), silent=True)}
        return Method(alone, partial(answer_alone, method), asked=asked)
    return aggregate_method(name)
