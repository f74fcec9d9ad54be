"""What the store tells of questions, answers and the trail: plain values, free of the database."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from cofal.errors import UserError

# Why an image may be left without a label. It then leaves the pool and its place in the budget is free again.
REASONS = ("broken", "unclear", "not in the list")
STATES = ("open", "labelled", "skipped", "disputed")
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Query:
    """One question: which class is this image of?"""

    id: str  # of the sample
    track: str
    rank: int  # 0 is asked first
    selection: str  # which selection asked
    why: dict[str, Any]
    asked_at: str  # UTC, ISO 8601
    state: str  # open | labelled | skipped | disputed
    label: str | None  # the final label, if the state is labelled
    reason: str | None  # of the skip, if the state is skipped
    resolved_by: str | None  # who settled a dispute
    held_by: str | None  # in front of whom the image is now


@dataclass(frozen=True)
class Answer:
    """What one annotator says of one sample: a label, or the reason of a skip."""

    annotator: str
    label: str | None
    reason: str | None
    seconds: float | None
    at: str = ""

    @property
    def value(self) -> tuple[str | None, str | None]:
        """What two annotators agree on, or not."""
        return self.label, self.reason


@dataclass(frozen=True)
class Event:
    """One line of the audit trail."""

    number: int
    at: str
    annotator: str
    action: str  # asked | withdrawn | label | skip | resolve | undo
    sample: str
    source: str  # page, or where an imported answer came from
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    state: str  # of the sample, after the action
    undoes: int | None  # number of the action that an undo takes back


@dataclass(frozen=True)
class Work:
    """What one annotator did."""

    labelled: int
    skipped: int
    median_seconds: float | None


@dataclass(frozen=True)
class Progress:
    """How far the labelling is. Numbers of samples; times in seconds."""

    asked: int
    open: int
    labelled: int
    skipped: int
    disputed: int
    second_opinions: int  # labelled samples that wait for another annotator, by the overlap share
    annotators: dict[str, Work] = field(default_factory=dict)
    median_seconds: float | None = None
    seconds_left: float | None = None  # for those at work now; None as long as nothing was timed


def check_annotator(name: str) -> str:
    """The annotator's name without outer spaces."""
    if not isinstance(name, str):
        raise UserError(f"annotator {name!r} is not a name; give a text")
    name = name.strip()
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise UserError(f"annotator {name[:_LONGEST_NAME]!r} is not a name; use 1 to {_LONGEST_NAME} printable letters")
    return name


def check_seconds(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise UserError(f"an answer took {seconds!r} seconds; give a number of 0 or more, or none")
    return float(seconds)


def check_reason(reason: str) -> str:
    if reason not in REASONS:
        raise UserError(f"cannot skip for the reason {reason!r}; known: {', '.join(REASONS)}")
    return reason
