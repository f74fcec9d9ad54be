"""FederatedProbCover: clients propose centroids of uncovered regions, all count what a ball around each would cover.

This is the coordinator's half, with the paper's schedule; the batched one is in batches.py, what both have decided in
coverstate.py, the greedy over counts in overlaps.py. The clients' half is in covering.py, what they work out from their
rows in regions.py. docs/aggregate-selection.md tells why it is done this way.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.selection.aggregate.batches import MOST_BALLS, in_batches
from cofal.selection.aggregate.bounds import WHOLE, Asked, Values, between, positions, vectors, whole
from cofal.selection.aggregate.cells import check_min_region
from cofal.selection.aggregate.covering import answer
from cofal.selection.aggregate.coverstate import Offers, State
from cofal.selection.aggregate.exchange import Consortium, Coordinator, Method, Question, by_turns
from cofal.selection.aggregate.regions import LEVELS
from cofal.selection.numbers import checked_radius
from cofal.selection.radius import WITHOUT_STRUCTURE

SCHEDULES = ("batched", "paper")
TRIPS, PICKS_A_TRIP = 10, 20  # a batched selection takes at most TRIPS + budget / PICKS_A_TRIP round trips


def coordinate(
    consortium: Consortium,
    rng: np.random.Generator,
    *,
    delta: float | str = 0.75,
    schedule: str = "batched",
    min_region: int = 5,
) -> Coordinator:
    """`schedule`: "paper" is the paper's Algorithm 1, three round trips a pick; "batched" takes many picks a refresh.

    `delta`: radius of a ball between unit rows (2 at most), or "auto": the median of the clients' own estimates.
    `min_region`: no centroid of fewer samples leaves a client, and no count below it.
    """
    check_min_region(min_region)
    if schedule not in SCHEDULES:
        raise UserError(f"schedule = {schedule!r} is unknown; use one of {', '.join(SCHEDULES)}")
    delta = checked_radius(delta)
    total = sum(consortium.budgets)
    if total == 0:
        return []
    trips = TRIPS + total // PICKS_A_TRIP - 1  # the last one settles
    if isinstance(delta, str):
        answers = yield Question("radius", numbers={"min_region": min_region})
        trips -= 1
        radii = np.concatenate([answer["radius"] for answer in answers])
        estimated = radii[(radii > 0) & (radii < math.inf)]
        delta = float(np.median(estimated)) if len(estimated) else WITHOUT_STRUCTURE
    state = State(consortium, delta, min_region, exact=schedule == "paper")
    if any(consortium.labeled):
        answers = yield state.question("labeled")
        trips -= 1
        for answer in answers:
            state.surround(answer["centers"], answer["levels"])
    if schedule == "paper":
        yield from _one_by_one(state, total)
    else:
        yield from in_batches(state, trips, total)
    yield state.question("settle", [{"alone": np.array(left, np.int32)} for left in state.left])
    return state.owners + by_turns(state.left)


def _one_by_one(state: State, total: int) -> Generator[Question, Any, None]:
    """Algorithm 1: every client proposes its best region, all count, the best is taken by whoever is nearest."""
    while len(state.owners) < total:
        prefix = np.array([[len(state.centers)] * 2], np.int32)
        one = [{"wanted": np.ones(1, np.int32)} for _ in state.left]
        trip = {"prefix": prefix, "radii": np.array([state.delta]), "tops": np.array([LEVELS], np.int32)}
        answers = yield state.question("propose", one, summed=False, **trip)
        offers = Offers(state.consortium.dimensions)
        offers.add(answers)
        best: list[int] = []
        if len(offers):
            counts = yield state.question("count", one, summed=True, **trip, **offers.balls)
            everyone = np.ones_like(state.left)  # a client without labels left proposes too
            best, _ = offers.choose(counts, everyone, 1)
        if not best:
            if state.start == len(state.centers):
                return  # nothing is covered, and still no region is large enough to speak of
            state.start = len(state.centers)
            continue
        state.accept(offers, best)
        state.refine(None)
        state.assign((yield state.question("nearest")))


_STATE = {
    "centers": vectors("centers"),
    "levels": whole("centers", high=LEVELS - 1),
    "refined": vectors("refined"),
    "mine": positions("mine", "refined"),
}
_TRIPS = {
    "prefix": Values(("trips", 2), WHOLE, low=0, below="centers", ends=True),
    "radii": between("trips", 0, 2),
    "tops": whole("trips", high=LEVELS),
    "wanted": whole("trips"),
}
_BALLS = {"balls": vectors("balls"), "sizes": whole("balls", high=LEVELS - 1)}
_NUMBERS = ("assigned", "bits", "delta", "exact", "given", "start")
PROBCOVER = Method(
    coordinate,
    answer,
    counts={"gains": False, "overlaps": False, "bare": True},
    asked={
        "radius": Asked(),
        "labeled": Asked(_STATE, _NUMBERS),
        "propose": Asked(_STATE | _TRIPS, _NUMBERS),
        "count": Asked(_STATE | _TRIPS | _BALLS, _NUMBERS, summed=True),
        "refresh": Asked(_STATE | _TRIPS | _BALLS, _NUMBERS, summed=True),
        "nearest": Asked(_STATE, _NUMBERS),
        "settle": Asked(_STATE | {"alone": whole()}, _NUMBERS, silent=True),
    },
    most={"balls": MOST_BALLS, "trips": 64},
)
