"""FederatedProbCover, the clients' half: each answer comes from the client's rows and the question alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from cofal.rng import generator
from cofal.selection.aggregate.exchange import OFTEN, Arrays, Holder, coarse, fixed, told_counts
from cofal.selection.aggregate.regions import (
    Region,
    Rows,
    Sent,
    best_regions,
    centroids,
    first_covered,
    labeled_regions,
)
from cofal.selection.pool import Pool
from cofal.selection.radius import estimate_radius

_STEP = 0.02  # of the radius that a client estimates
_CENTRED = 0.87  # of what it estimates for balls around samples: around a centroid a ball holds more, and the client's
# own rows lie farther apart than those of all clients


def answer(holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> Arrays:
    """A client's answer, from its rows and the question alone."""
    if kind == "radius":
        return {"radius": _radius(holder, int(numbers["min_region"]))}
    rows, told = Rows(holder), _Told(arrays, numbers)
    if kind == "labeled":
        regions = labeled_regions(rows, told.least, told.delta)
        centers, levels = centroids(rows, regions, told.least, told.delta, told.exact)
        return {"centers": centers, "levels": levels}
    if kind in ("propose", "count", "refresh"):
        covered, proposed = _last_trip(rows, told)
        found: Arrays = {}
        if kind != "count":
            found["centers"], found["levels"] = centroids(rows, proposed, told.least, told.delta, told.exact)
            found["distances"] = _distances(rows, told)
        if kind != "propose":
            sums = fixed(rows.sums(covered, told.least), int(numbers["bits"]))
            found |= {**_counts(holder, rows, told), "sums": sums}
        return found
    if kind == "nearest":
        return {"distances": _distances(rows, told)}
    picked = _picks(rows, told)
    holder.picked = rows.order[np.concatenate([picked, _alone(rows, told, picked)])]
    return {}


class _Told:
    """A question by names."""

    def __init__(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> None:
        self.arrays = arrays
        self.centers, self.levels, self.refined = arrays["centers"], arrays["levels"], arrays["refined"]
        self.delta, self.least = float(numbers["delta"]), int(numbers["min_region"])
        self.start, self.given, self.assigned = (int(numbers[name]) for name in ("start", "given", "assigned"))
        self.exact = bool(numbers["exact"])

    def uncovered(self, rows: Rows, delta: float, end: int, refined: int) -> np.ndarray:
        """(n,) bool: rows that no centre before `end` covers in this pass, the first `refined` ones refined."""
        middles = np.concatenate([self.refined[:refined], self.centers[refined:end]])[self.start :]
        return ~rows.covered(middles, self.levels[self.start : end], delta, max(0, refined - self.start))

    def bare(self, rows: Rows) -> np.ndarray:
        """(n,) bool: rows farther than the radius itself from every centre, whatever the level of its ball."""
        centers = np.concatenate([self.refined, self.centers[len(self.refined) :]])
        inside = rows.inside(centers, np.zeros(len(centers), np.uint8), self.delta)
        bare: np.ndarray = np.logical_not(inside.any(axis=1))
        return bare


def _radius(holder: Holder, least: int) -> np.ndarray:
    """(1,) the client's estimate; 0, which no estimate is, where it has too few rows for one.

    It is a distance between two of its rows: told in steps, and always the same one.
    """
    if len(holder.rows) < max(2, least):
        return np.zeros(1)
    estimate = estimate_radius(Pool([Rows(holder).x]), generator(0, "radius"))
    return np.array([max(_STEP, round(_CENTRED * estimate / _STEP) * _STEP)])


def _last_trip(rows: Rows, told: _Told) -> tuple[list[np.ndarray], list[Region]]:
    """What this client tells in the last trip of those listed: regions that new centres cover, and its proposals.

    What it told in the trips before is worked out again, or remembered: no two regions may differ by a few rows.
    """
    prefix, wanted, radii, tops = (told.arrays[name].tolist() for name in ("prefix", "wanted", "radii", "tops"))
    covered: list[np.ndarray] = []
    proposed: list[Region] = []
    sent = Sent(rows.n)
    if told.given:
        for members, _ in labeled_regions(rows, told.least, radii[0]):
            sent.add(members)
    past = hashlib.sha256(repr((told.least, told.start, told.given)).encode())
    for (end, refined), count, delta, top in zip(prefix, wanted, radii, tops):
        seen = told.centers[:end].tobytes() + told.levels[:end].tobytes() + told.refined[:refined].tobytes()
        past.update(seen + repr((end, refined, count, delta, top)).encode())
        key = ("trip", past.digest())
        if key in rows.cache:
            covered, proposed, fresh = rows.cache[key]
            sent.extend(fresh)
        else:
            before = len(sent)
            covered = _covered(rows, told, delta, end, refined, sent)
            uncovered = told.uncovered(rows, delta, end, refined)
            proposed = best_regions(rows, uncovered, count, told.least, delta, top, sent)
            rows.cache[key] = covered, proposed, sent.since(before)
    return covered, proposed


def _covered(rows: Rows, told: _Told, delta: float, end: int, refined: int, sent: Sent) -> list[np.ndarray]:
    """The client's region of each centre that is not refined: the rows it is the first to cover, none if they are few.

    A region that differs by a few rows from one told before is replaced by that one; new ones are added to `sent`.
    """
    uncovered = told.uncovered(rows, delta, refined, refined)
    regions = []
    for members in first_covered(rows, uncovered, told.centers[refined:end], told.levels[refined:end], delta):
        if len(members) < told.least:
            regions.append(members[:0])
        elif (like := sent.like(members, told.least)) is not None:
            regions.append(like)
        else:
            sent.add(members)
            regions.append(members)
    return regions


def _counts(holder: Holder, rows: Rows, told: _Told) -> Arrays:
    """Uncovered samples in each ball, and in each two (above the diagonal, row by row), none below the least.

    Beside them how many samples are bare. Where two balls differ by one sample, how many each has in common with every
    other would say of each of those whether the sample is inside. So what is in two is told in steps, by chance.
    """
    (end, refined), delta = told.arrays["prefix"][-1].tolist(), float(told.arrays["radii"][-1])
    uncovered = np.flatnonzero(told.uncovered(rows, delta, end, refined))
    inside = rows.inside(told.arrays["balls"], told.arrays["sizes"], told.delta, uncovered).astype(np.float32)
    shared = np.rint(inside.T @ inside).astype(np.int32)  # whole numbers below 2**24: exact
    first, second = np.triu_indices(len(shared), 1)
    overlaps = shared[first, second]
    if told.least > 1 and holder.noise is None:
        drawn = _draws(rows, told.arrays["balls"], told.arrays["sizes"])
        overlaps = by_chance(overlaps, told.least, drawn[first] + drawn[second])
    counts = {
        "gains": np.diagonal(shared),
        "overlaps": overlaps,
        "bare": np.array([told.bare(rows).sum()]),
    }
    return told_counts(holder, counts, told.least)


def _draws(rows: Rows, balls: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """(m,) uint64 of each ball, always the same ones; only who has all of the client's rows can know them."""
    keyed = [
        hashlib.blake2b(ball.tobytes() + level.tobytes(), digest_size=8, key=rows.secret).digest()
        for ball, level in zip(balls, levels)
    ]
    return np.frombuffer(b"".join(keyed), dtype=np.uint64)


def by_chance(counts: np.ndarray, step: int, draws: np.ndarray) -> np.ndarray:
    """Multiples of `step` in place of `counts`: the one below or above, so that the mean is right; below `step` 0.

    `draws` (uint64) decide, mixed as in SplitMix64 (Steele, Lea and Flood, 2014).
    """
    mixed = (draws ^ (draws >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    chance = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    found: np.ndarray = np.where(counts < step, 0, np.floor(counts / step + chance) * step).astype(np.int32)
    return found


def _distances(rows: Rows, told: _Told) -> np.ndarray:
    """From each centre that is not assigned to the client's nearest free sample.

    Of fewer than `min_region` free samples nothing is told, no more than a few of each, and in a selection no more than
    so many times as there are free ones.
    """
    free = ~rows.taken
    most = OFTEN * int(free.sum())
    free[_picks(rows, told)] = False
    centers = told.refined[told.given + told.assigned :]
    found = rows.nearest(centers, free, often=OFTEN if told.least > 1 else len(centers))[1]
    if told.least > 1:
        found[max(0, most - told.assigned) :] = np.inf
        if free.sum() < told.least:
            found[:] = np.inf
    return found if told.exact else coarse(found)


def _picks(rows: Rows, told: _Told) -> np.ndarray:
    """Which samples the picks are that this client was given: of each centre in turn the nearest that is still free."""
    mine = told.given + told.arrays["mine"].astype(np.int64)
    centers = told.refined[mine]
    known, picked = rows.cache.get("picks", (b"", np.empty(0, np.int64)))
    if not centers.tobytes().startswith(known):
        known, picked = b"", np.empty(0, np.int64)
    free = ~rows.taken
    free[picked] = False
    picked = np.concatenate([picked, rows.nearest(centers[len(picked) :], free, often=1)[0]])
    rows.cache["picks"] = centers.tobytes(), picked
    return picked


def _alone(rows: Rows, told: _Told, picked: np.ndarray) -> np.ndarray:
    """Picks for labels that no region could be found for: ProbCover on the client's own rows, telling nobody.

    What lies within the radius of a centre is taken as covered, and of its own picks and labelled samples.
    """
    wanted = int(told.arrays["alone"])
    if wanted == 0:
        return np.empty(0, np.int64)
    balls, everything = rows.balls(told.delta, 0), np.ones(rows.n, dtype=bool)
    free, uncovered = ~rows.taken, told.bare(rows)
    free[picked] = False
    for members in rows.around(np.flatnonzero(~free), 0, told.delta):
        uncovered[members] = False
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
