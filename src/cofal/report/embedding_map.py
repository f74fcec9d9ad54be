"""The 2-D map of the shared embeddings: t-SNE of all picks and a sample of the rest, made once and kept in the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cofal.files import read_json, write_json
from cofal.report.facts import Facts, Pick, Shared
from cofal.rng import generator

SIDE = 1000  # coordinates run from 0 to SIDE, y downwards
MOST_POINTS = 2000
FEWEST_POINTS = 10
_VERSION = 1


@dataclass(frozen=True)
class Map:
    """Places of samples, by client and id."""

    places: dict[str, dict[str, tuple[int, int]]]
    total: int  # how many embeddings were shared; the map may show fewer
    centroids: bool  # are the places those of centroids, and of the directions of picks?

    @property
    def shown(self) -> int:
        return sum(map(len, self.places.values()))


Picks = dict[tuple[str, str], list[Pick]]  # by method and coordination


def embedding_map(facts: Facts, shared: Shared, picks: Picks) -> Map | None:
    """The run's map with `picks` on it, read from its folder or made and kept there.

    None if too few points, or all alike, were shared.
    """
    terms = {"version": _VERSION, "most": MOST_POINTS, **shared.terms}
    if facts.run.map.exists() and (kept := read_json(facts.run.map)).get("terms") == terms:
        found = _from_json(kept["places"], shared)
        if all(pick.id in found.places.get(pick.client, {}) for listed in picks.values() for pick in listed):
            return found
    places = _make(facts, shared, picks)
    if places is None:
        return None
    write_json(facts.run.map, {"terms": terms, "places": places})
    return _from_json(places, shared)


def _from_json(places: dict[str, Any], shared: Shared) -> Map:
    return Map(
        {name: {each: (x, y) for each, x, y in rows} for name, rows in places.items()}, shared.size, shared.centroids
    )


def _make(facts: Facts, shared: Shared, picks: Picks) -> dict[str, list[tuple[str, int, int]]] | None:
    chosen = _sample(facts, shared, picks)
    if not chosen:
        return None
    points = np.concatenate(
        [np.asarray(shared.embeddings[name][rows], dtype=np.float32) for name, rows in chosen.items()]
    )
    if len(points) < FEWEST_POINTS or np.allclose(points, points[0]):
        return None
    flat = layout(points, facts.config.seed)
    places: dict[str, list[tuple[str, int, int]]] = {}
    begin = 0
    for name, rows in chosen.items():
        part = flat[begin : begin + len(rows)]
        places[name] = [(shared.ids[name][row], int(x), int(y)) for row, (x, y) in zip(rows, part, strict=True)]
        begin += len(rows)
    return places


def _sample(facts: Facts, shared: Shared, picks: Picks) -> dict[str, np.ndarray]:
    """Rows to draw, by client: every pick, then others at random in proportion to the client, up to MOST_POINTS."""
    if shared.size <= MOST_POINTS:
        return {name: np.arange(len(ids)) for name, ids in shared.ids.items()}
    picked = {(pick.client, pick.id) for listed in picks.values() for pick in listed}
    rows: dict[str, np.ndarray] = {}
    for name, ids in shared.ids.items():
        must = np.array([row for row, sample in enumerate(ids) if (name, sample) in picked], dtype=np.int64)
        room = max(0, MOST_POINTS * len(ids) // shared.size - len(must))
        others = np.setdiff1d(np.arange(len(ids)), must)
        rng = generator(facts.config.seed, "map", name)
        rows[name] = np.sort(np.concatenate([must, rng.permutation(others)[:room]]))
    return rows


def layout(points: np.ndarray, seed: int) -> np.ndarray:
    """(n, d) -> (n, 2) whole numbers from 0 to SIDE: alike rows lie close."""
    return _to_square(_tsne(points, seed))


def _tsne(points: np.ndarray, seed: int) -> np.ndarray:
    """(n, d) -> (n, 2). One thread: several add up in the order they end, and t-SNE magnifies the last bit."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return TSNE(
            perplexity=min(30.0, (len(points) - 1) / 3),
            init="pca",
            max_iter=500,
            random_state=int(generator(seed, "map").integers(2**31)),
        ).fit_transform(points)


def _to_square(flat: np.ndarray) -> np.ndarray:
    """Scaled by one factor into the square of SIDE, centred, as whole numbers."""
    low, high = flat.min(axis=0), flat.max(axis=0)
    scale = SIDE / max(float((high - low).max()), 1e-9)
    return np.rint((flat - (low + high) / 2) * scale + SIDE / 2).astype(int)
