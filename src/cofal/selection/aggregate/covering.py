"""FederatedProbCover, the clients' half: each answer comes from the client's rows and the question alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from cofal.rng import generator
from cofal.selection.aggregate.exchange import Arrays, Holder, coarse
from cofal.selection.aggregate.regions import Region, Rows, Sent, best_regions, centroids, labeled_regions
from cofal.selection.pool import Pool
from cofal.selection.radius import estimate_radius


def answer(holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> Arrays:
    """A client's answer, from its rows and the question alone."""
    if kind == "radius":
        return {"radius": _radius(holder, int(numbers["seed"]))}
    rows, told = Rows(holder), _Told(arrays, numbers)
    if kind == "labeled":
        centers, levels = centroids(rows, labeled_regions(rows, told.least, told.delta), told.least, told.delta)
        return {"centers": centers, "levels": levels}
    if kind == "propose":
        centers, levels = centroids(rows, _proposals(rows, told), told.least, told.delta)
        return {"centers": centers, "levels": levels, "distances": _distances(rows, told)}
    if kind == "count":
        return _counts(rows, told)
    if kind == "nearest":
        return {"distances": _distances(rows, told)}
    picked = _picks(rows, told)
    holder.picked = rows.order[np.concatenate([picked, _alone(rows, told, picked)])]
    return {}


class _Told:
    """A question by names."""

    def __init__(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> None:
        self.arrays = arrays
        self.centers, self.levels = arrays["centers"], arrays["levels"]
        self.delta, self.least = float(numbers["delta"]), int(numbers["min_region"])
        self.start, self.given, self.assigned = (int(numbers[name]) for name in ("start", "given", "assigned"))
        self.exact = bool(numbers["exact"])

    def uncovered(self, rows: Rows, end: int | None = None, delta: float | None = None) -> np.ndarray:
        """(n,) bool: rows that no centre before `end` covers in this pass; at the radius asked about, or `delta`."""
        return ~rows.covered(self.centers[self.start : end], self.levels[self.start : end], delta or self.delta)


def _radius(holder: Holder, seed: int) -> np.ndarray:
    if len(holder.rows) < 2:
        return np.array([np.nan])
    return np.array([estimate_radius(Pool([Rows(holder).x]), generator(seed, "radius"))])


def _proposals(rows: Rows, told: _Told) -> list[Region]:
    """The regions asked for last. What was sent for the questions before is worked out again, or remembered."""
    prefix, wanted, radii = (told.arrays[name].tolist() for name in ("prefix", "wanted", "radii"))
    regions: list[Region] = []
    sent = Sent(rows.n)
    if told.given:
        for members, _ in labeled_regions(rows, told.least, radii[0]):
            sent.add(members)
    past = hashlib.sha256(repr((told.least, told.start, told.given)).encode())
    for end, count, delta in zip(prefix, wanted, radii):
        past.update(told.centers[:end].tobytes() + told.levels[:end].tobytes() + repr((end, count, delta)).encode())
        key = ("regions", past.digest())
        if key in rows.cache:
            regions = rows.cache[key]
            for members, _ in regions:
                sent.add(members)
        else:
            regions = best_regions(rows, told.uncovered(rows, end, delta), count, told.least, delta, sent)
            rows.cache[key] = regions
    return regions


def _counts(rows: Rows, told: _Told) -> Arrays:
    """Uncovered samples in each ball, and in each two (above the diagonal, row by row), none below the least."""
    uncovered = np.flatnonzero(told.uncovered(rows))
    inside = rows.inside(told.arrays["balls"], told.arrays["sizes"], told.delta, uncovered).astype(np.float32)
    shared = np.rint(inside.T @ inside).astype(np.int32)  # whole numbers below 2**24: exact
    shared[shared < told.least] = 0
    return {"gains": np.diagonal(shared).copy(), "overlaps": shared[np.triu_indices(len(shared), 1)]}


def _distances(rows: Rows, told: _Told) -> np.ndarray:
    """From each centre that is not assigned to the client's nearest free sample."""
    free = ~rows.taken
    free[_picks(rows, told)] = False
    found = rows.nearest(told.centers[told.given + told.assigned :], free, again=True)[1]
    return found if told.exact else coarse(found)


def _picks(rows: Rows, told: _Told) -> np.ndarray:
    """Which samples the picks are that this client was given: of each centre in turn the nearest that is still free."""
    mine = told.given + told.arrays["mine"].astype(np.int64)
    centers = told.centers[mine]
    known, picked = rows.cache.get("picks", (b"", np.empty(0, np.int64)))
    if not centers.tobytes().startswith(known):
        known, picked = b"", np.empty(0, np.int64)
    free = ~rows.taken
    free[picked] = False
    picked = np.concatenate([picked, rows.nearest(centers[len(picked) :], free, again=False)[0]])
    rows.cache["picks"] = centers.tobytes(), picked
    return picked


def _alone(rows: Rows, told: _Told, picked: np.ndarray) -> np.ndarray:
    """Picks for labels that no region could be found for: ProbCover on the client's own rows, telling nobody."""
    wanted = int(told.arrays["alone"])
    if wanted == 0:
        return np.empty(0, np.int64)
    balls, everything = rows.balls(told.delta, 0), np.ones(rows.n, dtype=bool)
    free = ~rows.taken
    free[picked] = False
    uncovered = told.uncovered(rows)
    found: list[int] = []
    while len(found) < wanted:
        sizes = np.where(free[: balls.candidates], balls.sizes(uncovered), 0)
        if sizes.max(initial=0) == 0:
            if uncovered.all():
                found += np.flatnonzero(free)[: wanted - len(found)].tolist()
                break
            uncovered = everything.copy()
            continue
        best = int(np.argmax(sizes))
        found.append(best)
        free[best] = False
        uncovered[balls.members(best, uncovered)] = False
    return np.array(found, np.int64)
