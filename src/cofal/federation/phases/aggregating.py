"""Phase II from aggregates: the coordinator's questions go to the sites as messages; sums open or under masks."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet
from cofal.privacy.secure_sum import FEWEST, MOST_ROUNDS, Collector, SumFailed
from cofal.rng import generator
from cofal.selection.aggregate.exchange import Arrays, Consortium, Question, total
from cofal.selection.aggregate.select import aggregate_method

TRIES = 3  # rounds in which one sum is attempted while sites drop out


@dataclass(frozen=True)
class Task:
    """One aggregate selection, as every site is told of it."""

    digest: str  # of the encoder whose embeddings are meant
    track: str
    method: str
    asked: Mapping[str, int]  # by site: samples asked for in earlier steps of this track
    wanted: Mapping[str, int]  # by site: samples to pick now

    def told(self, name: str, question: Question) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "track": self.track,
            "method": self.method,
            "asked": self.asked[name],
            "budget": self.wanted[name],
            "kind": question.kind,
            "numbers": json.dumps(dict(question.numbers)),
        }


def check_sites(fleet: Fleet, *, secure: bool) -> None:
    """Raise if these sites cannot sum in secret; told before the long phases begin."""
    if secure and len(fleet.names) < FEWEST:
        raise UserError(
            f"selection.secure_sums needs at least {FEWEST} sites and {len(fleet.names)} take part: fewer would tell "
            "each other what they hold; add a site or set it to false"
        )


def select_from_aggregates(
    fleet: Fleet, task: Task, dimension: int, seed: int, params: dict[str, Any], *, secure: bool
) -> list[str]:
    """The site of each pick, in the order picked. Which samples they are, only the sites know."""
    members = [fleet.members[name] for name in fleet.names]
    consortium = Consortium(
        sizes=[member.samples for member in members],
        labeled=[member.known_labels + task.asked[member.name] for member in members],
        budgets=[task.wanted[name] for name in fleet.names],
        dimensions=dimension,
    )
    if not any(consortium.budgets):
        return []
    coordinator = aggregate_method(task.method).coordinate(consortium, generator(seed, "select"), **params)
    sums: MaskedSums | None = None
    sent: Any = None
    while True:
        try:
            question = coordinator.send(sent)
        except StopIteration as done:
            if sums:
                sums.close()
            return [fleet.names[client] for client in done.value]
        if question.summed and secure:
            sums = sums or MaskedSums.start(fleet, task)
            sent = sums.total(question)
        else:
            answers = _answers(fleet, task, question)
            sent = total(answers) if question.summed else answers


def _contents(fleet: Fleet, task: Task, question: Question, **more: Any) -> dict[str, Any]:
    return {
        name: m.pack(arrays=question.told(client), config={**task.told(name, question), **more})
        for client, name in enumerate(fleet.names)
    }


def _answers(fleet: Fleet, task: Task, question: Question) -> list[Arrays]:
    replies = fleet.ask(m.AGGREGATE, _contents(fleet, task, question), at_least=len(fleet.names))
    return [m.arrays_of(replies[name]) for name in fleet.names]


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
        replies = fleet.ask_all(m.SUM_KEYS, {"session": session})
        keys = {name: bytes(m.config_of(reply)["key"]) for name, reply in replies.items()}
        collector = Collector(session, keys, MOST_ROUNDS)
        roster = {"session": session, "names": list(keys), "keys": list(keys.values()), "rounds": MOST_ROUNDS}
        given = {name: m.config_of(reply) for name, reply in fleet.ask_all(m.SUM_SHARES, roster).items()}
        shares = {name: dict(zip(said["names"], said["shares"], strict=True)) for name, said in given.items()}
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
        replies = self.fleet.ask(m.AGGREGATE, _contents(self.fleet, self.task, question, **told), at_least=least)
        shapes = {name: tuple(shape) for name, shape in json.loads(_agreed_shapes(replies)).items()}
        masked = {name: m.arrays_of(reply)["masked"] for name, reply in replies.items()}
        survivors = self.collector.survivors(masked)
        contents = {}
        for name in survivors:
            inbox = self.inboxes.get(name, {})
            content = {**told, "survivors": survivors, "senders": list(inbox), "shares": list(inbox.values())}
            contents[name] = m.pack(config=content)
        opened = self.fleet.ask(m.SUM_UNMASK, contents, at_least=least)
        unmasked = {name: bytes(m.config_of(reply)["opened"]) for name, reply in opened.items()}
        for name in opened:
            self.inboxes[name] = {}  # relayed: the site keeps them
        return self.collector.total(number, masked, unmasked, shapes)

    def close(self) -> None:
        """Have every site forget its secrets of this session."""
        self.fleet.ask_all(m.SUM_CLOSE, {"session": self.collector.roster.session})


def _agreed_shapes(replies: Mapping[str, Any]) -> str:
    said = {str(m.config_of(reply)["shapes"]) for reply in replies.values()}
    if len(said) != 1:
        raise UserError(f"the sites sum arrays of different shapes: {'; '.join(sorted(said))}; use the same cofal")
    return said.pop()
