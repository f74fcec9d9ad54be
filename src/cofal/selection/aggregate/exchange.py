"""How an aggregate selection talks: questions of the coordinator, answers of the holders; the carrier is free.

The coordinator is a generator that yields one `Question` a round trip and is sent the answers; a holder answers from
its own rows. Both halves are pure, so the same code runs inside `cofal.select` and over messages between sites.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from cofal.selection.aggregate.bounds import Asked

Arrays = dict[str, np.ndarray]
Result = TypeVar("Result")  # what a coordinator returns at its end
COARSE = 0.05  # step of the distances and cosines that clients tell of single samples
OFTEN = 5  # distances or cosines at most that are told of a single sample: with more, even coarse ones add up to it
LIMIT = 2**31  # totals of summed answers stay below this in absolute value, so that four bytes carry a number


@dataclass(frozen=True)
class Question:
    """One round trip: what every client is told, what each is told alone, and whether only totals come back."""

    kind: str
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)  # plain ints and floats
    own: Sequence[Mapping[str, np.ndarray]] = ()  # empty, or one mapping per client
    summed: bool = False  # answers are int32 arrays of equal shapes; the coordinator is sent only their totals (int64)

    def told(self, client: int) -> Arrays:
        """The arrays that one client is told."""
        return {**self.arrays, **(self.own[client] if self.own else {})}


@dataclass(frozen=True)
class Consortium:
    """What the coordinator knows of the clients before it asks anything."""

    sizes: Sequence[int]  # samples of each client
    labeled: Sequence[int]  # of those, already labelled
    budgets: Sequence[int]
    dimensions: int
    masked: bool = False  # summed answers travel under masks: a question of their own, more than one round trip each

    @property
    def clients(self) -> int:
        return len(self.sizes)


@dataclass
class Holder:
    """A client's side: its unit rows, which of them are taken, and what was computed from them before.

    `cache` only saves time: an answer never depends on it, so that any process of the site can give the next one.
    `picked` are the positions settled by the coordinator's last question. `noise` puts a policy's noise on all counts
    of an answer, by name, and charges for them; None: counts are told as they are.
    """

    rows: np.ndarray  # (n, d) float32, unit length
    taken: np.ndarray  # (n,) bool: labelled or asked for before
    cache: dict[Any, Any] = field(default_factory=dict)
    picked: np.ndarray | None = None
    noise: Callable[[Mapping[str, np.ndarray]], Arrays] | None = None


# Yields questions, is sent a list of answers (one per client) or one answer of totals, returns the client of each pick.
Coordinator = Generator[Question, Any, list[int]]


@dataclass(frozen=True)
class Method:
    """Both halves of an aggregate selector.

    coordinate: (Consortium, Generator of random numbers, **params) -> Coordinator. Its last question settles the picks:
    every holder sets `picked`, in the order in which the coordinator's list names that client.
    answer: (Holder, kind, arrays, numbers) -> Arrays.
    counts: which arrays of an answer are counts of samples, told by `told_counts`; True if a sample is in one of the
    groups counted at most, False if it may be in several. Noise on counts is charged by it. Which group a sample is in
    must follow from the sample and from what is told alone, never from other samples: else one more of them would
    change many counts.
    asked: by kind, what a question consists of; most: the greatest lengths of its arrays, by name (`bounds.py`).
    """

    coordinate: Callable[..., Coordinator]
    answer: Callable[[Holder, str, Mapping[str, np.ndarray], Mapping[str, float]], Arrays]
    counts: Mapping[str, bool] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)


def fraction_bits(samples: int) -> int:
    """Binary places of a fixed-point number so that the sum of `samples` numbers in [-1, 1] stays below `LIMIT`."""
    return 30 - max(1, int(samples)).bit_length()


def fixed(values: np.ndarray, bits: int) -> np.ndarray:
    """Real numbers as int32 multiples of 2**-bits: sums of such are exact and do not depend on the order."""
    return np.rint(np.asarray(values, dtype=np.float64) * 2.0**bits).astype(np.int32)


def coarse(values: np.ndarray, step: float | np.ndarray = COARSE) -> np.ndarray:
    """Distances or cosines of single samples, rounded to what choosing among clients needs (float32).

    An exact one tells whoever holds a copy of the sample that it is there: he computes it and finds it in the answer.
    """
    return (np.rint(np.asarray(values, dtype=np.float64) / step) * step).astype(np.float32)


def to_depth(told: Sequence[np.ndarray], depth: int, none: float) -> np.ndarray:
    """(clients, m, depth): what each client tells (m, its own depth), `none` where it tells no more."""
    return np.stack([np.pad(each, ((0, 0), (0, depth)), constant_values=none)[:, :depth] for each in told])


def by_turns(left: np.ndarray) -> list[int]:
    """The clients of picks that are left to them alone, `left` (clients,) of each: all first ones, all second ones."""
    return [client for turn in range(int(left.max(initial=0))) for client in np.flatnonzero(left > turn).tolist()]


def told_counts(
    holder: Holder, counts: Mapping[str, np.ndarray], least: float, unsuppressed: Collection[str] = ()
) -> Arrays:
    """All counts of an answer, by name, as they leave: with the holder's noise, then 0 in place of any below `least`.

    In this order: from counts set to 0 first, one sample less would take `least` away, and noise made to hide one
    sample would not hide it. What is done to noised counts tells nothing more.
    """
    told = {name: array.astype(np.int32) for name, array in counts.items()}
    if holder.noise is not None:
        told = holder.noise(told)
    return {
        name: array if name in unsuppressed else np.where(array < least, 0, array).astype(np.int32)
        for name, array in told.items()
    }


def real(totals: np.ndarray, bits: int) -> np.ndarray:
    """The real numbers behind fixed-point totals, float64."""
    return np.asarray(totals, dtype=np.float64) * 2.0**-bits


@dataclass
class Exchanged:
    """What a selection cost: round trips, and the bytes each client sent and received."""

    rounds: int = 0
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)


def run(
    coordinator: Generator[Question, Any, Result], holders: Sequence[Holder], answer: Callable[..., Arrays]
) -> tuple[Result, Exchanged]:
    """Drive a coordinator with holders in this process; returns what it returns, and what was exchanged."""
    cost = Exchanged(up=[0] * len(holders), down=[0] * len(holders))
    sent: Any = None
    while True:
        try:
            question = coordinator.send(sent)
        except StopIteration as done:
            return done.value, cost
        answers = []
        for client, holder in enumerate(holders):
            told = question.told(client)
            answers.append(answer(holder, question.kind, told, question.numbers))
            cost.down[client] += sum(array.nbytes for array in told.values()) + 8 * len(question.numbers)
            cost.up[client] += sum(array.nbytes for array in answers[-1].values())
        cost.rounds += 1
        sent = total(answers) if question.summed else answers


def total(answers: Sequence[Arrays]) -> Arrays:
    """The sum of int32 answers, int64."""
    return {name: np.asarray(sum(each[name].astype(np.int64) for each in answers)) for name in answers[0]}
