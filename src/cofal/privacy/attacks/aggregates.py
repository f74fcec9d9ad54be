"""Membership from what an aggregate selection tells its coordinator: means and counts of regions, and distances.

The attacks read a recording of the exchange, whatever the method: see `overheard`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cofal.rng import generator
from cofal.selection.aggregate.cells import answer_cells
from cofal.selection.aggregate.exchange import (
    Arrays,
    Consortium,
    Coordinator,
    Holder,
    Method,
    Question,
    real,
    run,
    total,
)
from cofal.selection.aggregate.typiclust import doubts

_FLOOR = 0.1  # share of the mean variance added to every direction: a fitted covariance is not to be trusted further


@dataclass(frozen=True)
class Heard:
    """One round trip as the coordinator saw it: its question, and the answers (or, under masks, only their totals)."""

    question: Question
    answers: list[Arrays]


@dataclass(frozen=True)
class Regions:
    """Means (m, d) of regions of rows and how many rows each holds, of one client or of all together.

    Without counts only the directions of the means are known: they have unit length.
    """

    means: np.ndarray
    counts: np.ndarray | None


def overhear(
    method: Method,
    rows: Sequence[np.ndarray],
    budgets: Sequence[int],
    seed: int,
    params: Mapping[str, Any],
    *,
    masked: bool,
) -> list[Heard]:
    """All that the coordinator of a selection over clients with `rows` (each (n, d), unit length) is told.

    Of what is summed each client's part; if it is `masked`, as under secure sums, the totals alone.
    """
    holders = [Holder(each, np.zeros(len(each), dtype=bool)) for each in rows]
    members = Consortium([len(each) for each in rows], [0] * len(rows), list(budgets), rows[0].shape[1], masked)
    parts: list[Arrays] = []
    heard: list[Heard] = []

    def answer(*asked: Any) -> Arrays:
        parts.append(method.answer(*asked))
        return parts[-1]

    coordinator = method.coordinate(members, generator(seed, "select"), **params)
    run(_listening(coordinator, parts, heard, masked), holders, answer)
    return heard


def _listening(coordinator: Coordinator, parts: list[Arrays], heard: list[Heard], masked: bool) -> Coordinator:
    """The coordinator, and what it hears; `parts` are the clients' answers to its last question."""
    sent: Any = None
    while True:
        try:
            question = coordinator.send(sent)
        except StopIteration as done:
            picks: list[int] = done.value
            return picks
        sent = yield question
        heard.append(Heard(question, [sent] if question.summed and masked else list(parts)))
        parts.clear()


def totals(heard: Sequence[Heard]) -> list[Heard]:
    """The same with the totals alone of all that is summed."""
    return [Heard(each.question, [total(each.answers)]) if each.question.summed else each for each in heard]


def regions(heard: Sequence[Heard], d: int) -> list[list[Regions]]:
    """Of every message that held any: the regions by answer. Found by shape: rows of d numbers beside whole counts."""
    found = [
        [told for answer in each.answers for told in _regions(answer, d, int(each.question.numbers.get("bits", 0)))]
        for each in heard
    ]
    return [told for told in found if told]


def _regions(answer: Arrays, d: int, bits: int) -> Iterator[Regions]:
    for values in answer.values():
        if values.ndim != 2 or values.shape[1] != d:
            continue
        counts = next((c for name, c in answer.items() if name == "counts" and c.shape == values.shape[:1]), None)
        length = np.linalg.norm(values.astype(np.float64), axis=1)
        held = length > 0 if counts is None else counts > 0
        if not held.any():
            continue
        if counts is None:
            yield Regions(values[held] / length[held, None], None)
        elif values.dtype.kind == "f":
            yield Regions(values[held].astype(np.float64), counts[held].astype(np.float64))
        else:  # fixed-point sums
            yield Regions(real(values[held], bits) / counts[held, None], counts[held].astype(np.float64))


def own_regions(rows: Sequence[np.ndarray], most: int, min_region: int) -> list[Regions]:
    """What every client tells when it is asked once for at most `most` regions of at least `min_region` of its rows."""
    numbers: dict[str, float] = {"most": most, "min_region": min_region, "fine": 0}
    answers = [answer_cells(Holder(each, np.zeros(len(each), dtype=bool)), numbers) for each in rows]
    return [told for answer in answers for told in _regions(answer, rows[0].shape[1], 0)]


def scores(heard: Sequence[Heard], candidates: np.ndarray, background: np.ndarray) -> dict[str, np.ndarray]:
    """Attack -> (N,) score of each candidate (N, d), over all that was heard; attacks without material are left out."""
    told = regions(heard, candidates.shape[1])
    prints = fingerprint_score(heard, candidates)
    found = {
        "distance to the nearest mean": [nearest_score(each, candidates) for each in told],
        "likelihood ratio of means": [
            likelihood_score(counted, candidates, background)
            for each in told
            if (counted := [one for one in each if one.counts is not None])
        ],
        "distances told": [] if prints is None else [prints],
    }
    return {name: np.sum(each, axis=0) for name, each in found.items() if each}


def nearest_score(told: Sequence[Regions], candidates: np.ndarray) -> np.ndarray:
    """(N,) minus the distance of each candidate (N, d) to the nearest mean."""
    squares = np.stack([_squared(candidates, each.means).min(1) for each in told])
    nearest: np.ndarray = -np.sqrt(squares.min(0))
    return nearest


def likelihood_score(told: Sequence[Regions], candidates: np.ndarray, background: np.ndarray) -> np.ndarray:
    """(N,) log-likelihood ratio of the means with and without each candidate (N, d) in the region it falls into.

    A mean of m rows is drawn towards each of them by one part in m. How far it is drawn is judged against the mean that
    the attacker's own rows `background` have in the same region, in units of their spread there. A candidate can be
    with one client only, so the ratios of several clients' messages are averaged as probabilities.
    """
    ratios = np.stack([_ratios(each, candidates, background) for each in told])
    top = ratios.max(0)
    total: np.ndarray = top + np.log(np.exp(ratios - top).mean(0))
    return total


def _ratios(told: Regions, candidates: np.ndarray, background: np.ndarray) -> np.ndarray:
    assert told.counts is not None
    home = _squared(background, told.means).argmin(1)
    own = np.bincount(home, minlength=len(told.means)).astype(np.float64)
    usual = told.means.copy()
    for region in np.flatnonzero(own):
        usual[region] = background[home == region].mean(0, dtype=np.float64)
    inside = (background - usual[home]).astype(np.float64)
    covariance = inside.T @ inside / len(inside)
    values, vectors = np.linalg.eigh(covariance)
    whiten = vectors / np.sqrt(values + _FLOOR * values.mean() + 1e-12)  # (d, d): rows times this have unit spread
    place = _squared(candidates, told.means).argmin(1)
    pull = ((told.means - usual) @ whiten)[place]
    offset = (candidates - usual[place]) @ whiten
    m = told.counts[place].astype(np.float64)
    variance = 1 / m + 1 / np.maximum(own[place], 1)
    ratio: np.ndarray = ((offset * pull).sum(1) / m - (offset**2).sum(1) / (2 * m**2)) / variance
    return np.where(own[place] > 0, ratio, 0.0)


def fingerprint_score(heard: Sequence[Heard], candidates: np.ndarray) -> np.ndarray | None:
    """(N,) minus the least difference between a candidate's distance or cosine to a point and one told for that point.

    Points are what questions held, answers the real numbers told with one entry (or row) a point; None without such
    answers. A distance told to many digits is a fingerprint of the sample behind it.
    """
    d, best = candidates.shape[1], np.full(len(candidates), -np.inf)
    asked: list[np.ndarray] = []  # an answer may refer to the points of an earlier question
    for each in heard:
        asked += [
            array for array in each.question.arrays.values() if array.ndim == 2 and array.shape[1] == d and len(array)
        ]
        for points in asked[-2:]:
            readings: list[np.ndarray] = []
            for told in (array for answer in each.answers for array in answer.values()):
                if told.dtype.kind != "f" or told.ndim > 2 or len(told) != len(points) or told.shape[1:] == (d,):
                    continue
                cosines = candidates.astype(np.float64) @ points.T.astype(np.float64)
                readings = readings or [*_distances(candidates, points, each.question.arrays.get("sizes")), cosines]
                best = np.maximum(best, -np.min([_misses(mine, told) for mine in readings], axis=0))
    return best if np.isfinite(best).any() else None


def _distances(candidates: np.ndarray, points: np.ndarray, sizes: np.ndarray | None) -> list[np.ndarray]:
    """(N, p) distances of candidates to points, and to centres of `sizes` (p,) rows also as TypiClust tells them."""
    squares = _squared(candidates, points)
    if sizes is None or len(sizes) != len(points):
        return [np.sqrt(squares)]
    return [np.sqrt(squares), np.sqrt(squares + doubts(candidates, points, sizes))]


def _misses(mine: np.ndarray, told: np.ndarray) -> np.ndarray:
    """(N,) the least difference of mine (N, p) to a number told for the same point (p,) or (p, depth)."""
    least = np.full(len(mine), np.inf)
    for point, row in enumerate(told.reshape(len(told), -1).astype(np.float64)):
        values = np.sort(row[np.isfinite(row)])
        if len(values):
            at = np.searchsorted(values, mine[:, point])
            low, high = values[np.maximum(at - 1, 0)], values[np.minimum(at, len(values) - 1)]
            least = np.minimum(least, np.minimum(np.abs(mine[:, point] - low), np.abs(mine[:, point] - high)))
    return least


def _squared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    distances: np.ndarray = np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T, 0)
    return distances
