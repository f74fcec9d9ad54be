"""Answers from elsewhere brought into the store: what is new is added, what differs is told, nothing is replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from cofal.labeling.answering import answer_of, now, put_answer, put_resolution, sample_row
from cofal.labeling.records import Answer
from cofal.labeling.schema import samples


@dataclass(frozen=True)
class Incoming:
    """One answer of a file: a label, or the reason of a skip.

    person: is the annotator a person whom the file or the user names? His answer then counts beside those of others,
    as a second opinion; an answer of nobody in particular is only taken where there is none.
    """

    sample: str
    label: str | None
    reason: str | None
    annotator: str
    seconds: float | None = None
    person: bool = False


@dataclass(frozen=True)
class Conflict:
    """An answer that differs from what the store has."""

    sample: str
    has: str
    given: str
    disputed: bool  # True: both are kept and wait to be resolved; False: the one given was left out


@dataclass
class Outcome:
    """What became of the answers of a file."""

    added: int = 0
    unchanged: int = 0
    overwritten: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    unknown_ids: list[str] = field(default_factory=list)  # not asked at this site
    unknown_classes: list[tuple[str, str]] = field(default_factory=list)  # id, class that the site does not list
    unreadable: list[str] = field(default_factory=list)  # entries that say nothing clear, each in one line


def merge(
    connection: Connection, incoming: Iterable[Incoming], classes: Sequence[str], source: str, *, overwrite: bool
) -> Outcome:
    """Bring `incoming` in, in order; doing so again changes nothing. `overwrite` resolves conflicts in its favour."""
    outcome, listed = Outcome(), set(classes)
    asked = set(connection.execute(select(samples.c.id)).scalars())  # others wait: no look-up for every foreign id
    for given in incoming:
        if given.sample not in asked:
            outcome.unknown_ids.append(given.sample)
            continue
        if given.label is not None and listed and given.label not in listed:
            outcome.unknown_classes.append((given.sample, given.label))
            continue
        answer = Answer(given.annotator, given.label, given.reason, given.seconds, now())
        row = sample_row(connection, given.sample)
        own = answer_of(connection, given.sample, given.annotator)
        settled = row.state in ("labelled", "skipped")
        agrees = settled and row.label == given.label
        if (own is not None and own.value == answer.value) or (agrees and not given.person):
            outcome.unchanged += 1
        elif own is None and (row.state == "open" or agrees):
            put_answer(connection, given.sample, answer, source)
            outcome.added += 1
        elif overwrite:
            if own is not None or given.person:
                put_answer(connection, given.sample, answer, source)
            put_resolution(connection, given.sample, answer.value, given.annotator, source)
            outcome.overwritten += 1
        else:
            disputed = own is None and given.person
            if disputed:
                put_answer(connection, given.sample, answer, source)
            has = own.label or f"skipped: {own.reason}" if own is not None else _told(row)
            outcome.conflicts.append(Conflict(given.sample, has, given.label or f"skipped: {given.reason}", disputed))
    return outcome


def _told(row: object) -> str:
    state, label, reason = (getattr(row, name) for name in ("state", "label", "reason"))
    if state == "disputed":
        return "disputed"
    return str(label) if label is not None else f"skipped: {reason}"
