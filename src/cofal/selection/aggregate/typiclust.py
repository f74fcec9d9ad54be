"""FederatedTypiClust: federated k-means, then of each cluster the free sample that lies closest among its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cofal.selection.aggregate.bounds import FLAGS, Asked, Values, positions, vectors, whole
from cofal.selection.aggregate.cells import canonical, check_min_region, nearest
from cofal.selection.aggregate.exchange import (
    COARSE,
    Arrays,
    Consortium,
    Coordinator,
    Holder,
    Method,
    Question,
    coarse,
    to_depth,
)
from cofal.selection.aggregate.kmeans import ASKED, Clusters, answer_kmeans, check_iterations, federated_kmeans
from cofal.selection.numbers import MOST_TRIPS
from cofal.selection.typiclust import MAX_CLUSTERS, NEIGHBORS, SMALL_CLUSTER

_DEPTH = 4  # a client tells this many times as many distances a cluster as picks are expected there
_ANYWHERE = -1  # in place of a cluster: the client's most typical free sample of any
_FINE = 0.02  # step of the distances told where they depend on neighbours, whom only the client knows
_APART = 2  # free samples for each distance told, at least
_FARTHER = 0.1  # from one distance to the next that no sample is behind
_SHARPNESS = np.float32(8.0)  # of the chances that a row is of a cluster
_ROWS = 512  # rows whose neighbours are looked for at once


def coordinate(
    consortium: Consortium, rng: np.random.Generator, *, min_region: int = 5, iterations: int = 15
) -> Coordinator:
    """`iterations` + 2 round trips at most.

    All rows, labelled ones included, form min(labelled + budget, 500) clusters. Each pick goes to the cluster of the
    least (is it small, labels in it, minus its size), a pick counting as a label from then on; there it goes to the
    client with budget left whose most typical free sample lies closest (ties: the most budget left).
    """
    check_min_region(min_region)
    check_iterations(iterations)
    total = sum(consortium.budgets)
    if total == 0:
        return []
    k = min(sum(consortium.labeled) + total, MAX_CLUSTERS, sum(consortium.sizes))
    clusters = yield from federated_kmeans(consortium, k, rng, min_region=min_region, iterations=iterations)
    cells, owners = _cells(clusters.told)
    told = {"centers": clusters.centers, "sizes": clusters.sizes.astype(np.int32), **cells}
    numbers = {"clients": consortium.clients, "min_region": min_region}
    mine = [{"mine": owners == me} for me in range(consortium.clients)]
    depth = _DEPTH * -(-total // len(clusters.centers))
    answers = yield Question("nearest", told, {**numbers, "depth": depth}, own=mine)
    distances = to_depth([each["distances"] for each in answers], depth, np.inf)
    turns = assign(clusters, distances, consortium.budgets, min_region)
    own = [
        {**whose, "clusters": np.array([cluster for client, cluster in turns if client == me], np.int16)}
        for me, whose in enumerate(mine)
    ]
    yield Question("settle", told, numbers, own=own)
    return [client for client, _ in turns]


def _cells(told: Sequence[Arrays]) -> tuple[Arrays, np.ndarray]:
    """The cells of all clients, in an order that does not show which are of one client; and whose each is."""
    cells = {name: np.concatenate([one[name] for one in told]) for name in ("means", "counts")}
    order = np.argsort(cells["means"][:, 0], kind="stable")
    owners = np.repeat(np.arange(len(told)), [len(one["counts"]) for one in told])
    return {name: values[order] for name, values in cells.items()}, owners[order]


def assign(clusters: Clusters, distances: np.ndarray, budgets: Sequence[int], min_region: int) -> list[tuple[int, int]]:
    """(client, cluster) of each pick, from `distances` (clients, k, depth), ascending, infinite where there is none.

    A cluster is small if it is even with all that clients may be keeping silent about.
    """
    clients, k, _ = distances.shape
    left = np.array(budgets, np.int64)
    told = np.zeros((clients, k), np.int64)  # how many of a client's distances in a cluster are used up
    padded = np.concatenate([distances, np.full((clients, k, 1), np.inf)], axis=2)
    sizes = np.maximum(clusters.sizes, clusters.cells)
    most = sizes + clients * (min_region - 1)
    turn = (most <= SMALL_CLUSTER) * 2**60 + clusters.labeled * 2**40 - sizes
    over = np.iinfo(np.int64).max
    turns: list[tuple[int, int]] = []
    while left.sum() > 0 and (cluster := int(turn.argmin())) >= 0 and turn[cluster] < over:
        offers = np.where(left > 0, padded[np.arange(clients), cluster, told[:, cluster]], np.inf)
        client = int(np.lexsort((-left, offers))[0])  # of equal offers, the one with the most budget left
        if offers[client] == np.inf:
            turn[cluster] = over
            continue
        turns.append((client, cluster))
        told[client, cluster] += 1
        left[client] -= 1
        turn[cluster] += 2**40
    for client, rest in enumerate(left.tolist()):  # what it told of is used up: it takes what is nearest
        turns += [(client, _ANYWHERE)] * rest
    return turns


def answer(holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> Arrays:
    """A client's part: sums and counts of clusters, distances of its most typical free samples, and its picks."""
    if kind in ("cells", "sums"):
        return answer_kmeans(holder, kind, arrays, numbers)
    ranked, squares, fine = _ranked(holder, arrays, int(numbers["clients"]))
    if kind == "nearest":
        distances = _nearest(ranked, squares, _depth(len(holder.rows), len(ranked), numbers))
        _keep_nearest(distances, int(np.count_nonzero(~holder.taken)), int(numbers["min_region"]))
        return {"distances": coarse(distances, np.where(fine, _FINE, COARSE)[:, None])}
    holder.picked = _replay(ranked, squares, arrays["clusters"])
    holder.picked = canonical(holder)[2][holder.picked]
    return {}


def _depth(samples: int, clusters: int, numbers: Mapping[str, float]) -> int:
    """Distances told of a cluster: one at least, else at most as asked for, and one in `min_region` samples in all."""
    return max(1, min(int(numbers["depth"]), samples // (int(numbers["min_region"]) * clusters)))


def _keep_nearest(distances: np.ndarray, free: int, least: int) -> None:
    """Of (k, depth) distances keep the least, no more than one for `_APART` free samples; none of fewer than `least`.

    Where clusters are as many as a client's samples, the distances would be a list of them.
    """
    if least == 1:
        return
    most = free // _APART if free >= least else 0
    order = np.argsort(distances, axis=None, kind="stable")
    distances.ravel()[order[most:]] = np.inf


def _nearest(ranked: list[np.ndarray], squares: np.ndarray, depth: int) -> np.ndarray:
    """(k, depth) distances of the most typical free rows of each cluster.

    Where there are fewer, the last one goes on, farther and farther: how few there are is not told.
    """
    distances = np.full((len(ranked), depth), np.inf, np.float32)
    for cluster, rows in enumerate(ranked):
        if len(rows):
            known = np.sqrt(squares[rows[:depth]])
            distances[cluster, : len(known)] = known
            distances[cluster, len(known) :] = known[-1] + _FARTHER * np.arange(1, depth - len(known) + 1)
    return distances


def _ranked(
    holder: Holder, told: Mapping[str, np.ndarray], clients: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Of each cluster the free rows from the most typical down; of every row a squared distance: the less, the more
    typical; and of each cluster whether neighbours count in it.

    Central selection takes the mean over the 20 nearest rows of the cluster. Here a client knows its own part of the 20
    from its rows, and the rest from the other clients' cells: from x, the mean squared distance to the unit rows of a
    cell of mean m is 2 - 2 <x, m>. The smaller the cluster, the more the distance to the centre takes their place,
    which is the mean of all clients' rows: 20 neighbours are half of a cluster of 40. Rows that other clusters come
    close to count as farther away.
    """
    rows, taken, _ = canonical(holder)
    centers, sizes = told["centers"], told["sizes"]
    labels, squares = nearest(rows, centers)
    cells, held = told["means"][~told["mine"]].astype(np.float32), told["counts"][~told["mine"]]
    homes = _members(nearest(cells, centers)[0], len(centers))
    weights = np.minimum(1.0, 2 * NEIGHBORS / np.maximum(1, sizes))
    fine = np.zeros(len(centers), dtype=bool)
    for cluster, members in enumerate(_members(labels, len(centers))):
        own = min(-(-NEIGHBORS // clients), len(members) // 2)
        if own == 0 or weights[cluster] == 1:
            continue
        fine[cluster] = True
        spread = _to_neighbors(rows[members], own)
        counts = np.maximum(held[homes[cluster]], 0)
        if others := min(NEIGHBORS - own, int(counts.sum()) // 2):
            rest = _to_cells(rows[members], cells[homes[cluster]], counts, others)
            spread = (own * spread + others * rest) / (own + others)
        squares[members] = (1 - weights[cluster]) * spread + weights[cluster] * squares[members]
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        squares[part] += np.take_along_axis(doubts(rows[part], centers, sizes), labels[part, None], axis=1)[:, 0]
    free = np.flatnonzero(~taken)
    free = free[np.lexsort((free, squares[free], labels[free]))]
    return [free[part] for part in _members(labels[free], len(centers))], squares, fine


def doubts(rows: np.ndarray, centers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(m, k) float32, as squared distances: how much nearer to each of `rows` (m, d) all clusters are than each one.

    Clusters are as near as their size and exp(`_SHARPNESS` <row, centre>) together say, so it is 0 for a row to which
    no other comes close, and grows with minus the logarithm of the chance that the row is of the cluster.
    """
    scores = _SHARPNESS * (rows @ centers.T) + np.log(np.maximum(1, sizes)).astype(np.float32)
    most = scores.max(axis=1, keepdims=True)
    every = most + np.log(np.exp(scores - most).sum(axis=1, keepdims=True))
    found: np.ndarray = np.maximum(every - scores, 0) * 2 / _SHARPNESS
    return found


def _members(labels: np.ndarray, k: int) -> list[np.ndarray]:
    """The positions of each label below `k`, ascending."""
    return np.split(np.argsort(labels, kind="stable"), np.bincount(labels, minlength=k).cumsum()[:-1])


def _to_cells(rows: np.ndarray, cells: np.ndarray, counts: np.ndarray, neighbors: int) -> np.ndarray:
    """(m,) float32 mean squared distance of unit `rows` to the rows of the nearest `cells`, to `neighbors` of them."""
    means = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), _ROWS):
        squares = np.maximum(2 - 2 * rows[start : start + _ROWS] @ cells.T, 0)  # rounded means may be longer than 1
        order = np.argsort(squares, axis=1, kind="stable")
        held = counts[order]
        used = np.clip(neighbors - (held.cumsum(axis=1) - held), 0, held)
        means[start : start + _ROWS] = (np.take_along_axis(squares, order, axis=1) * used).sum(axis=1) / neighbors
    return means


def _to_neighbors(rows: np.ndarray, neighbors: int) -> np.ndarray:
    """(m,) float32 mean squared distance of each of unit `rows` (m, d) to the `neighbors` nearest others."""
    means = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), _ROWS):
        cosines = rows[start : start + _ROWS] @ rows.T
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = -np.inf
        best = np.partition(cosines, len(rows) - neighbors, axis=1)[:, len(rows) - neighbors :]
        means[start : start + _ROWS] = 2 - 2 * np.sort(best, axis=1).mean(1)
    return np.maximum(means, 0)


def _replay(ranked: list[np.ndarray], squares: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """The row behind each of the client's picks: the next one of the cluster named; without one, the most typical."""
    picked = np.full(len(clusters), -1, np.int64)
    heads = [0] * len(ranked)
    for place, cluster in enumerate(clusters.tolist()):
        if cluster != _ANYWHERE and heads[cluster] < len(ranked[cluster]):
            picked[place] = ranked[cluster][heads[cluster]]
            heads[cluster] += 1
    rest = np.concatenate([rows[head:] for rows, head in zip(ranked, heads)])
    lacking = np.flatnonzero(picked < 0)
    picked[lacking] = rest[np.lexsort((rest, squares[rest]))][: len(lacking)]
    return picked


_TOLD = {
    "centers": vectors("clusters"),
    "sizes": whole("clusters"),
    "means": vectors("cells"),
    "counts": whole("cells"),
    "mine": Values(("cells",), FLAGS),
}
TYPICLUST = Method(
    coordinate,
    answer,
    counts={"counts": True, "labeled": True},
    asked={
        **ASKED,
        "nearest": Asked(_TOLD, ("clients", "depth")),
        "settle": Asked(_TOLD | {"clusters": positions("picks", "clusters", _ANYWHERE)}, ("clients",), silent=True),
    },
    most={"clusters": MAX_CLUSTERS, "iterations": MOST_TRIPS},
)
