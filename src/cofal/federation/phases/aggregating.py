"""Phase II from aggregates: the coordinator's questions go to the sites as messages; sums open or under masks."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from flwr.app import RecordDict

from cofal.errors import CofalError, UserError
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet, Unusable
from cofal.federation.phases.overheard import Overheard
from cofal.federation.questions import common_question
from cofal.privacy.secure_sum import FEWEST, MOST_ROUNDS, Collector, SumFailed
from cofal.rng import generator
from cofal.selection.aggregate.exchange import Arrays, Consortium, Question, total
from cofal.selection.aggregate.select import aggregate_method

T = TypeVar("T")
TRIES = 3  # rounds in which one sum is attempted while sites drop out


@dataclass(frozen=True)
class Task:
    """One aggregate selection, as every site is told of it."""

    digest: str  # of the encoder whose embeddings are meant
    track: str
    method: str
    asked: Mapping[str, int]  # by site: samples asked for in earlier steps of this track
    wanted: Mapping[str, int]  # by site: samples to pick now
    skipped: Mapping[str, int] = field(default_factory=dict)  # by site: asked samples that left its pool unlabelled
    selection: int | None = None  # number of the selection in its track, if samples may be skipped in its middle
    decision: str = ""  # under `auto`: what was measured and decided, for the sites' ledgers

    def told(self, name: str, question: Question) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "track": self.track,
            "method": self.method,
            "asked": self.asked[name],
            "budget": self.wanted[name],
            "kind": question.kind,
            "numbers": json.dumps(dict(question.numbers)),
            **({} if self.selection is None else {"selection": self.selection}),
            **({"decision": self.decision} if self.decision else {}),
        }


def check_sites(fleet: Fleet, *, secure: bool) -> None:
    """Raise if these sites cannot sum in secret; told before the long phases begin."""
    if secure and len(fleet.names) < FEWEST:
        raise UserError(
            f"selection.secure_sums needs at least {FEWEST} sites and {len(fleet.names)} take part: fewer would tell "
            "each other what they hold; add a site or set it to false"
        )


def select_from_aggregates(
    fleet: Fleet, task: Task, dimension: int, seed: int, params: dict[str, Any], *, secure: bool, heard: Overheard
) -> list[str]:
    """The site of each pick, in the order picked. Which samples they are, only the sites know.

    `heard` notes the centroids that come by.
    """
    consortium = consortium_of(fleet, task, dimension, masked=secure)
    if not any(consortium.budgets):
        return []
    coordinator = aggregate_method(task.method).coordinate(consortium, generator(seed, "select"), **params)
    picked = converse(fleet, task, coordinator, secure=secure, heard=heard)
    return [fleet.names[client] for client in picked]


def consortium_of(fleet: Fleet, task: Task, dimension: int, *, masked: bool = False) -> Consortium:
    """What the server knows of these sites before it asks anything."""
    members = [fleet.members[name] for name in fleet.names]
    gone = [task.skipped.get(member.name, 0) for member in members]
    return Consortium(
        sizes=[member.samples - less for member, less in zip(members, gone)],
        labeled=[member.known_labels + task.asked[member.name] - less for member, less in zip(members, gone)],
        budgets=[task.wanted[name] for name in fleet.names],
        dimensions=dimension,
        masked=masked,
    )


def converse(
    fleet: Fleet,
    task: Task,
    coordinator: Generator[Question, Any, Any],
    *,
    secure: bool = False,
    heard: Overheard | None = None,
) -> Any:
    """Carry the coordinator's questions to the sites and their answers back; returns what it returns at its end."""
    sums: MaskedSums | None = None
    sent: Any = None
    while True:
        try:
            question = coordinator.send(sent)
        except StopIteration as done:
            if sums:
                sums.close()
            return done.value
        if heard:
            heard.question(question)
        if question.summed and secure:
            sums = sums or MaskedSums.start(fleet, task)
            sent = sums.total(question)
        else:
            answers = _answers(fleet, task, question)
            if heard and not question.summed:
                heard.answers(answers)
            sent = total(answers) if question.summed else answers


def _contents(fleet: Fleet, task: Task, question: Question, **more: Any) -> dict[str, Any]:
    return {
        name: m.pack(arrays=question.told(client), config={**task.told(name, question), **more})
        for client, name in enumerate(fleet.names)
    }


def _answers(fleet: Fleet, task: Task, question: Question) -> list[Arrays]:
    replies = _all(fleet, m.AGGREGATE, _contents(fleet, task, question), _numbers)
    return [replies[name] for name in fleet.names]


def _all(
    fleet: Fleet, kind: str, contents: Mapping[str, RecordDict], read: Callable[[str, RecordDict], T]
) -> dict[str, T]:
    """The answer of every site; if one does not come, all are asked once more, and give the same answers again."""
    try:
        return fleet.ask(kind, contents, read, at_least=len(contents))
    except UserError:  # refused
        raise
    except CofalError:
        return fleet.ask(kind, contents, read, at_least=len(contents))


def _numbers(name: str, content: RecordDict) -> Arrays:
    """The arrays that a site answers; what they must be, the coordinator of the method knows."""
    arrays = m.arrays_of(content)
    for key, array in arrays.items():
        if np.isnan(array).any():  # infinite is the distance to nothing
            raise Unusable(f"{key[:80]} holds NaN")
    return arrays


@dataclass
class MaskedSums:
    """A session of secure sums with the sites: two round trips to set up, two for each sum."""

    fleet: Fleet
    task: Task
    collector: Collector
    inboxes: dict[str, dict[str, bytes]]  # by receiver and sender: sealed shares, relayed with the first unmasking
    round: int = field(default=0)

    @classmethod
    def start(cls, fleet: Fleet, task: Task) -> MaskedSums:
        session = f"{task.track}-{secrets.token_hex(8)}"
        asked = dict.fromkeys(fleet.names, m.pack(config={"session": session}))
        keys = _all(fleet, m.SUM_KEYS, asked, lambda _, reply: bytes(m.config_of(reply)["key"]))
        collector = Collector(session, keys, MOST_ROUNDS)
        roster = {"session": session, "names": list(keys), "keys": list(keys.values()), "rounds": MOST_ROUNDS}
        shares = _all(fleet, m.SUM_SHARES, dict.fromkeys(fleet.names, m.pack(config=roster)), _shares)
        return cls(fleet, task, collector, {name: collector.inbox(name, shares) for name in keys})

    def total(self, question: Question) -> Arrays:
        """The total over the sites that answered; a round that too few finished is repeated under fresh masks."""
        for attempt in range(TRIES):
            try:
                return self._round(question)
            except SumFailed:
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _round(self, question: Question) -> Arrays:
        number, self.round = self.round, self.round + 1
        told = {"session": self.collector.roster.session, "round": number}
        least = self.collector.roster.threshold
        contents = _contents(self.fleet, self.task, question, **told)
        replies = self.fleet.ask(m.AGGREGATE, contents, _masked, at_least=least)
        shapes = _agreed_shapes([shapes for shapes, _ in replies.values()])
        masked = {name: array for name, (_, array) in replies.items()}
        survivors = self.collector.survivors(masked)
        contents = {}
        for name in survivors:
            inbox = self.inboxes.get(name, {})
            content = {**told, "survivors": survivors, "senders": list(inbox), "shares": list(inbox.values())}
            contents[name] = m.pack(config=content)
        unmasked = self.fleet.ask(
            m.SUM_UNMASK, contents, lambda _, reply: bytes(m.config_of(reply)["opened"]), at_least=least
        )
        for name in unmasked:
            self.inboxes[name] = {}  # relayed: the site keeps them
        asked = common_question(question.arrays, self.task.told(survivors[0], question))
        return self.collector.total(number, masked, unmasked, shapes, asked)

    def close(self) -> None:
        """Have every site forget its secrets of this session; the totals are there, whoever does not hear of it."""
        content = m.pack(config={"session": self.collector.roster.session})
        self.fleet.ask(m.SUM_CLOSE, dict.fromkeys(self.fleet.names, content), lambda _, reply: None, at_least=0)


def _shares(name: str, content: RecordDict) -> dict[str, bytes]:
    """By receiver: what a site sealed for it."""
    said = m.config_of(content)
    return {str(other): bytes(share) for other, share in zip(said["names"], said["shares"], strict=True)}


def _masked(name: str, content: RecordDict) -> tuple[str, np.ndarray]:
    """The shapes of what a site sums, as it says, and its masked numbers."""
    masked = m.arrays_of(content)["masked"]
    if masked.dtype != np.uint64 or masked.ndim != 1:
        raise Unusable(f"masked numbers are uint64 in a row, not {masked.dtype} {masked.shape}")
    return str(m.config_of(content)["shapes"]), masked


def _agreed_shapes(said: list[str]) -> dict[str, tuple[int, ...]]:
    if len(set(said)) != 1:
        told = "; ".join(sorted(text[:200] for text in set(said)))
        raise UserError(f"the sites sum arrays of different shapes: {told}; use the same cofal")
    return {name: tuple(shape) for name, shape in json.loads(said[0]).items()}
