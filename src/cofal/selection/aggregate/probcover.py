"""FederatedProbCover: clients propose centroids of uncovered regions, all count what a ball around each would cover.

This is the coordinator's half. The clients' half is in covering.py, what they work out from their rows in regions.py,
the greedy over counts in overlaps.py. docs/aggregate-selection.md tells why it is done this way.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.selection.aggregate.cells import check_min_region
from cofal.selection.aggregate.covering import answer
from cofal.selection.aggregate.exchange import Arrays, Consortium, Coordinator, Method, Question
from cofal.selection.aggregate.overlaps import batch_ends, choose

SCHEDULES = ("batched", "paper")
TRIPS, PICKS_A_TRIP = 10, 20  # a batched selection takes at most TRIPS + budget / PICKS_A_TRIP round trips
BATCHES = 20  # at most: every batch sends all centres so far to every client
OFFERS = 4  # proposals that are looked at for each pick of a batch
FINER = 0.75  # of the radius, once the regions that are left are too small to speak of
KEPT = 2  # older proposals that stay in the running, for each pick of the last batch


def coordinate(
    consortium: Consortium,
    rng: np.random.Generator,
    *,
    delta: float | str = 0.75,
    schedule: str = "batched",
    min_region: int = 5,
) -> Coordinator:
    """`schedule`: "paper" is the paper's Algorithm 1, three round trips a pick; "batched" takes many picks a refresh.

    `delta`: radius of a ball between unit rows (0 to 2), or "auto": the median of the clients' own estimates.
    `min_region`: no centroid of fewer samples leaves a client, and no count below it.
    """
    check_min_region(min_region)
    if schedule not in SCHEDULES:
        raise UserError(f"schedule = {schedule!r} is unknown; use one of {', '.join(SCHEDULES)}")
    if delta != "auto" and (isinstance(delta, bool | str) or not 0 <= delta < math.inf):
        raise UserError(f"delta = {delta!r} is neither a distance between unit rows (0 to 2) nor 'auto'")
    total = sum(consortium.budgets)
    if total == 0:
        return []
    trips = TRIPS + total // PICKS_A_TRIP - 2  # the last two tell who is nearest to the last centres, and settle
    if isinstance(delta, str):
        answers = yield Question("radius", numbers={"seed": int(rng.integers(2**31))})
        trips -= 1
        radii = np.concatenate([answer["radius"] for answer in answers])
        delta = float(np.median(radii[np.isfinite(radii)]))
    state = _State(consortium, float(delta), min_region, exact=schedule == "paper")
    if any(consortium.labeled):
        answers = yield state.question("labeled")
        trips -= 1
        for answer in answers:
            state.accept(answer["centers"], answer["levels"])
        state.given = len(state.centers)
    if schedule == "paper":
        yield from _one_by_one(state, total)
    else:
        yield from _in_batches(state, batch_ends(total, max(1, min(trips // 2, total, BATCHES))))
        state.repeat(total)
        if state.pending:
            state.assign((yield state.question("nearest")))
    yield state.question("settle", [{"alone": np.array(left, np.int32)} for left in state.left])
    return state.owners + [client for client, left in enumerate(state.left) for _ in range(left)]


@dataclass
class _State:
    """What is decided so far, and the questions that tell all of it."""

    consortium: Consortium
    delta: float
    min_region: int
    exact: bool  # distances of single samples are told to all digits, as the paper's schedule has it
    given: int = 0  # centres around labelled samples; those after them are picks
    start: int = 0  # the first centre that counts as covering in this pass
    centers: np.ndarray = field(init=False)  # (c, d) float16
    levels: np.ndarray = field(init=False)  # (c,) uint8
    owners: list[int] = field(default_factory=list)  # whose sample each pick is, of the picks that are assigned
    left: np.ndarray = field(init=False)  # (clients,) labels that are not assigned

    def __post_init__(self) -> None:
        self.centers = np.empty((0, self.consortium.dimensions), np.float16)
        self.levels = np.empty(0, np.uint8)
        self.left = np.array(self.consortium.budgets, np.int64)

    @property
    def picks(self) -> int:
        return len(self.centers) - self.given

    @property
    def pending(self) -> int:
        """Picks that are not assigned yet."""
        return self.picks - len(self.owners)

    def accept(self, centers: np.ndarray, levels: np.ndarray) -> None:
        self.centers = np.concatenate([self.centers, centers])
        self.levels = np.concatenate([self.levels, levels])

    def repeat(self, total: int) -> None:
        """Once all is covered: the same regions in the same order again; each will give its next nearest sample."""
        if self.picks:
            turns = self.given + np.arange(self.picks, total) % self.picks
            self.accept(self.centers[turns], self.levels[turns])

    def assign(self, answers: list[Arrays]) -> None:
        """Give each pending pick to the client with labels left whose nearest sample is nearest.

        Ties go to the client with the most labels left, then to the first.
        """
        distances = np.stack([answer["distances"] for answer in answers])
        for column in distances.T:
            able = np.flatnonzero(self.left > 0)
            owner = int(able[np.lexsort((-self.left[able], column[able]))[0]])
            self.owners.append(owner)
            self.left[owner] -= 1

    def question(
        self, kind: str, own: list[dict[str, np.ndarray]] | None = None, summed: bool = False, **arrays: np.ndarray
    ) -> Question:
        owners = np.array(self.owners, np.int32)
        mine = [{"mine": np.flatnonzero(owners == client).astype(np.int32)} for client in range(len(self.left))]
        numbers = {
            "delta": self.delta,
            "min_region": self.min_region,
            "given": self.given,
            "start": self.start,
            "assigned": len(self.owners),
            "exact": int(self.exact),
        }
        return Question(
            kind,
            {"centers": self.centers, "levels": self.levels, **arrays},
            numbers,
            [{**m, **o} for m, o in zip(mine, own or [{}] * len(mine))],
            summed,
        )


def _one_by_one(state: _State, total: int) -> Generator[Question, Any, None]:
    """Algorithm 1: every client proposes its best region, all count, the best is taken by whoever is nearest."""
    while len(state.owners) < total:
        prefix = np.array([len(state.centers)], np.int32)
        one, radii = [{"wanted": np.ones(1, np.int32)} for _ in state.left], np.array([state.delta])
        answers = yield state.question("propose", one, prefix=prefix, radii=radii)
        offers = _Offers(state.consortium.dimensions)
        offers.add(answers)
        best: list[int] = []
        if len(offers.centers):
            counts = yield state.question("count", summed=True, balls=offers.centers, sizes=offers.levels)
            everyone = np.ones_like(state.left)  # a client without labels left proposes too
            best, _ = offers.choose(counts, everyone, 1)
        if not best:
            if state.start == len(state.centers):
                return  # nothing is covered, and still no region is large enough to speak of
            state.start = len(state.centers)
            continue
        state.accept(offers.centers[best], offers.levels[best])
        state.assign((yield state.question("nearest")))


def _in_batches(state: _State, ends: list[int]) -> Generator[Question, Any, None]:
    """For each batch two round trips: new proposals (and who is nearest to the last batch's centres), then counts.

    A level is left when no ball of it is expected to gain `min_region` samples for every two clients: a client's later
    proposals are of what is left of its own rows alone, and others may have covered it. A batch that finds too few
    regions is followed by one with a smaller radius, at which less is covered.
    """
    offers = _Offers(state.consortium.dimensions)
    prefix, wanted, radii = np.empty(0, np.int32), np.empty((len(state.left), 0), np.int32), np.empty(0)
    for end in ends:
        size = end - state.picks
        each = np.where(state.left > 0, -(-OFFERS * size // int((state.left > 0).sum())), 0)
        prefix = np.append(prefix, np.int32(len(state.centers)))
        wanted = np.concatenate([wanted, each[:, None].astype(np.int32)], axis=1)
        radii = np.append(radii, state.delta)
        own = [{"wanted": row} for row in wanted]
        answers = yield state.question("propose", own, prefix=prefix, radii=radii)
        state.assign(answers)
        offers.add(answers)
        offers.keep(state.left[offers.clients] > 0)
        best: list[int] = []
        if len(offers.centers):
            counts = yield state.question("count", summed=True, balls=offers.centers, sizes=offers.levels)
            best, expected = offers.choose(counts, state.left, size, state.min_region * len(state.left) / 2)
            state.accept(offers.centers[best], offers.levels[best])
            offers.keep_best(expected, KEPT * size)
        if len(best) < size:  # nearly all is covered: what is far from the picks at a closer look?
            state.delta *= FINER
            offers = _Offers(state.consortium.dimensions)


class _Offers:
    """The proposals in the running: (m, d) float16 centres, (m,) uint8 levels, (m,) clients that proposed them."""

    def __init__(self, d: int) -> None:
        self.centers, self.levels = np.empty((0, d), np.float16), np.empty(0, np.uint8)
        self.clients = np.empty(0, np.int64)

    def add(self, answers: list[Arrays]) -> None:
        self.centers = np.concatenate([self.centers, *(answer["centers"] for answer in answers)])
        self.levels = np.concatenate([self.levels, *(answer["levels"] for answer in answers)])
        counts = [len(answer["centers"]) for answer in answers]
        self.clients = np.concatenate([self.clients, np.repeat(np.arange(len(answers)), counts)])

    def keep(self, which: np.ndarray) -> None:
        self.centers, self.levels, self.clients = self.centers[which], self.levels[which], self.clients[which]

    def choose(self, counts: Arrays, left: np.ndarray, size: int, least: float = 1.0) -> tuple[list[int], np.ndarray]:
        """`least`: expected gain below which a ball is no match for one of a higher level."""
        return choose(counts["gains"], _square(counts["overlaps"]), self.levels, self.clients, left, size, least)

    def keep_best(self, expected: np.ndarray, count: int) -> None:
        """Keep those that are expected to gain the most, lower levels before higher ones."""
        order = np.lexsort((-expected, self.levels))
        self.keep(np.sort(order[expected[order] >= 1][:count]))


def _square(triangle: np.ndarray) -> np.ndarray:
    """The symmetric matrix whose entries above the diagonal are given row by row; its diagonal is zero."""
    size = (1 + math.isqrt(1 + 8 * len(triangle))) // 2
    square = np.zeros((size, size), triangle.dtype)
    square[np.triu_indices(size, 1)] = triangle
    return square + square.T


PROBCOVER = Method(coordinate, answer, {"gains": False, "overlaps": False})
