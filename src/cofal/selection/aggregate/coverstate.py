"""What the coordinator of FederatedProbCover has decided so far, and the questions that tell all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from cofal.selection.aggregate.exchange import Arrays, Consortium, Question, fraction_bits, real
from cofal.selection.aggregate.overlaps import choose
from cofal.selection.aggregate.regions import centers_of


@dataclass
class State:
    """Centres in the order taken, those around labelled samples first, and whose pick each of the others is.

    A centre is taken as it was proposed, and refined once: `refined` is what the first of `centers` have become. Both
    lists only grow, so that a client can work out again what any earlier question made of its rows.
    """

    consortium: Consortium
    delta: float
    min_region: int
    exact: bool  # distances of single samples are told to all digits, as the paper's schedule has it
    given: int = 0  # centres around labelled samples; those after them are picks
    start: int = 0  # the first centre that counts as covering in this pass
    centers: np.ndarray = field(init=False)  # (c, d) float16
    levels: np.ndarray = field(init=False)  # (c,) uint8
    refined: np.ndarray = field(init=False)  # (r, d) float16, r <= c
    proposers: np.ndarray = field(init=False)  # (picks,) the client that proposed each
    owners: list[int] = field(default_factory=list)  # whose sample each pick is, of the picks that are assigned
    left: np.ndarray = field(init=False)  # (clients,) labels that are not assigned

    def __post_init__(self) -> None:
        self.centers = self.refined = np.empty((0, self.consortium.dimensions), np.float16)
        self.levels, self.proposers = np.empty(0, np.uint8), np.empty(0, np.int64)
        self.left = np.array(self.consortium.budgets, np.int64)

    @property
    def picks(self) -> int:
        return len(self.centers) - self.given

    @property
    def pending(self) -> int:
        """Picks with a refined centre that are not assigned yet."""
        return len(self.refined) - self.given - len(self.owners)

    @property
    def room(self) -> np.ndarray:
        """(clients,) labels left, less the picks that are not assigned yet, each counted at whoever proposed it."""
        expected = np.bincount(self.proposers[len(self.owners) :], minlength=len(self.left))
        room: np.ndarray = np.maximum(self.left - expected, 0)
        return room

    @property
    def bits(self) -> int:
        """Binary places of the sums that refine centres."""
        return fraction_bits(sum(self.consortium.sizes))

    def surround(self, centers: np.ndarray, levels: np.ndarray) -> None:
        """Take the centres around labelled samples."""
        self.centers = self.refined = np.concatenate([self.centers, centers])
        self.levels = np.concatenate([self.levels, levels])
        self.given = len(self.centers)

    def accept(self, offers: Offers, best: list[int]) -> None:
        """Take these proposals as the next picks."""
        self.centers = np.concatenate([self.centers, offers.centers[best]])
        self.levels = np.concatenate([self.levels, offers.levels[best]])
        self.proposers = np.concatenate([self.proposers, offers.clients[best]])

    def refine(self, sums: np.ndarray | None) -> None:
        """Move the centres that are not refined yet to the directions of fixed-point `sums` (m, d), if there are any.

        Where all clients kept silent, or without sums, a centre stays as it was proposed.
        """
        fresh = self.centers[len(self.refined) :]
        if sums is not None:
            moved = centers_of(real(sums, self.bits))
            fresh = np.where(moved.any(axis=1, keepdims=True), moved, fresh)
        self.refined = np.concatenate([self.refined, fresh])

    def repeat(self, total: int) -> None:
        """Once all is covered: the same regions in the same order again; each will give its next nearest sample."""
        if self.picks:
            turns = np.arange(self.picks, total) % self.picks
            again = self.refined[self.given + turns]
            self.centers = np.concatenate([self.centers, again])
            self.refined = np.concatenate([self.refined, again])
            self.levels = np.concatenate([self.levels, self.levels[self.given + turns]])
            self.proposers = np.concatenate([self.proposers, self.proposers[turns]])

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
        self, kind: str, own: list[dict[str, np.ndarray]] | None = None, *, summed: bool = False, **arrays: np.ndarray
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
            "bits": self.bits,
        }
        return Question(
            kind,
            {"centers": self.centers, "levels": self.levels, "refined": self.refined, **arrays},
            numbers,
            [{**m, **o} for m, o in zip(mine, own or [{}] * len(mine))],
            summed,
        )


class Offers:
    """The proposals in the running: (m, d) float16 centres, (m,) uint8 levels, (m,) clients that proposed them."""

    def __init__(self, d: int) -> None:
        self.centers, self.levels = np.empty((0, d), np.float16), np.empty(0, np.uint8)
        self.clients = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.centers)

    def add(self, answers: list[Arrays]) -> None:
        self.centers = np.concatenate([self.centers, *(answer["centers"] for answer in answers)])
        self.levels = np.concatenate([self.levels, *(answer["levels"] for answer in answers)])
        counts = [len(answer["centers"]) for answer in answers]
        self.clients = np.concatenate([self.clients, np.repeat(np.arange(len(answers)), counts)])

    @property
    def balls(self) -> Arrays:
        """As a question tells them."""
        return {"balls": self.centers, "sizes": self.levels}

    def keep(self, which: np.ndarray) -> None:
        self.centers, self.levels, self.clients = self.centers[which], self.levels[which], self.clients[which]

    def choose(
        self, counts: Arrays, left: np.ndarray, size: int, least: float = 1.0, rough: float = 0.0
    ) -> tuple[list[int], np.ndarray]:
        """`least`: expected gain below which a ball is no match for one of a higher level. `rough`: how much too small
        an overlap may be told.
        """
        return choose(counts["gains"], _square(counts["overlaps"]), self.levels, self.clients, left, size, least, rough)

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
