"""FederatedProbCover in batches: one round trip a batch, in which all that a batch needs of the clients is asked.

A batch passes through four trips, and a trip serves four batches: proposals for the next one; counts, by which this one
is chosen; sums, by which the centres of the last one are refined; and who is nearest to the centres before those.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from cofal.selection.aggregate.coverstate import Offers, State
from cofal.selection.aggregate.exchange import Arrays, Question, total
from cofal.selection.aggregate.overlaps import batch_ends
from cofal.selection.aggregate.regions import LEVELS

BATCHES = 20  # at most: every batch sends all centres so far to every client
BESIDE = 3  # round trips that are no batch: the first proposals, the last refinement, who is nearest to the last
OFFERS = 4  # proposals that are looked at for each pick of a batch
FINER = 0.75  # of the radius, once nearly all samples lie within it of a centre
WORTH = 0.75  # a ball is expected to gain so many times `min_region` samples a client, or a higher level is looked at
TOGETHER = 1 / 3  # of the picks are chosen together at whatever level it takes
LOOKS = 3  # of the others, those at so many levels from the first one
KEPT = 4  # older proposals that stay in the running, for each pick of the batch: they are not proposed again
MOST_BALLS = 2048  # in the running at once: each two of them are counted
SUMMED = ("gains", "overlaps", "bare", "sums")  # the parts of an answer of which only totals are needed


def in_batches(state: State, trips: int, picks: int) -> Generator[Question, Any, None]:
    """Take up to `picks` centres, assign them in at most `trips` round trips (more if sums are masked: see `_Trip`).

    A level is left when no ball of it is expected to gain `WORTH` times `min_region` samples a client: a client's later
    proposals are of what is left of its own rows alone, and others may have covered it. What a batch lacks is left to
    the next. Once there is nothing to propose, what lies farther than the radius from all centres is too sparse to
    speak of: the labels left are the clients' own to spend there. Where that is less than `min_region` samples for each
    label, the radius becomes smaller, so that less is covered.
    """
    ends = batch_ends(picks, max(1, min(trips - BESIDE, picks, BATCHES)))
    alone, first = False, 0
    trip, offers, least = _Trip(state), Offers(state.consortium.dimensions), WORTH * state.min_region * len(state.left)
    rough = (state.min_region - 1) * len(state.left)
    for end, following in zip([0, *ends], [*ends, picks]):
        offers.keep(state.room[offers.clients] > 0)
        answers, totals = yield from trip.ask(offers, following - end)
        state.assign(answers)
        state.refine(totals.get("sums"))
        size = end - state.picks
        best: list[int] = []
        if len(offers):
            best, expected = offers.choose(totals, state.room, size, least, rough)
            state.accept(offers, best)
            offers.keep_best(expected, min(KEPT * max(size, following - end), MOST_BALLS // 2))
        offers.add(answers)
        first = first if end else int(offers.levels.min(initial=LEVELS))
        if state.picks >= TOGETHER * picks:
            trip.top = min(first + LOOKS, LEVELS)
        offers.keep(offers.levels < trip.top)
        if len(best) < size and not len(offers):
            alone = int(totals["bare"][0]) >= state.min_region * (picks - state.picks)
            if alone:
                break
            state.delta *= FINER  # nearly all is covered: what is far from the picks at a closer look?
    if len(state.refined) < len(state.centers):
        state.refine((yield from trip.sums())["sums"])
    if not alone:
        state.repeat(picks)
    if state.pending:
        state.assign((yield state.question("nearest")))


class _Trip:
    """Asks for proposals, distances, counts and sums at once; where sums are masked, for the last two in another trip.

    Every question lists what was asked before: how many centres there were and how many of them were refined, the
    radius, and how many proposals each client was asked for.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.top = LEVELS  # proposals are of lower levels
        self._prefix, self._radii = np.empty((0, 2), np.int32), np.empty(0)
        self._tops = np.empty(0, np.int32)
        self._wanted = np.empty((len(state.left), 0), np.int32)

    def ask(self, offers: Offers, size: int) -> Generator[Question, Any, tuple[list[Arrays], Arrays]]:
        """All answers, and the totals: of `offers`, and of the centres that are not refined yet.

        The proposals are for a batch of `size` picks, by the clients that have labels left.
        """
        able = self._state.room > 0
        each = max(1, int(able.sum()))
        self._note(np.where(able, min(-(-OFFERS * size // each), MOST_BALLS // 2 // each), 0))
        if not self._state.consortium.masked:
            answers = yield self._question("refresh", summed=False, **offers.balls)
            return answers, total([{name: answer[name] for name in SUMMED} for answer in answers])
        answers = yield self._question("propose", summed=False)
        totals: Arrays = {}
        if len(self._prefix) > 1:  # the first trip has nothing to count
            totals = yield self._question("count", summed=True, **offers.balls)
        return answers, totals

    def sums(self) -> Generator[Question, Any, Arrays]:
        """The totals that refine the last centres."""
        self._note(np.zeros(len(self._state.left), np.int64))
        none = Offers(self._state.consortium.dimensions)
        totals: Arrays = yield self._question("count", summed=True, **none.balls)
        return totals

    def _note(self, wanted: np.ndarray) -> None:
        state = self._state
        self._prefix = np.append(self._prefix, np.array([[len(state.centers), len(state.refined)]], np.int32), axis=0)
        self._radii = np.append(self._radii, state.delta)
        self._tops = np.append(self._tops, np.int32(self.top))
        self._wanted = np.concatenate([self._wanted, wanted[:, None].astype(np.int32)], axis=1)

    def _question(self, kind: str, *, summed: bool, **arrays: np.ndarray) -> Question:
        own = [{"wanted": row} for row in self._wanted]
        arrays |= {"prefix": self._prefix, "radii": self._radii, "tops": self._tops}
        return self._state.question(kind, own, summed=summed, **arrays)
