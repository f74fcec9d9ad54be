"""What a claim is made of: checks with intervals, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cofal.evaluation.statistics import Estimate, estimate
from cofal.reproduce.book import Book
from cofal.reproduce.naming import METHODS


@dataclass(frozen=True)
class Check:
    """One number that a claim rests on."""

    what: str
    value: Estimate
    unit: str
    holds: bool  # points the claimed way
    clear: bool  # and its interval leaves no doubt


@dataclass(frozen=True)
class Claim:
    """What the paper says, and how it is checked."""

    number: int
    page: str  # the table or figure whose records decide it
    text: str
    checks: Callable[[Book], list[Check]] = field(repr=False)


@dataclass(frozen=True)
class Verdict:
    """A claim after its checks."""

    claim: Claim
    checks: list[Check]

    @property
    def word(self) -> str:
        good = [check.holds for check in self.checks]
        if not good or not any(good):
            return "does not hold"
        if not all(good):
            return "holds in part"
        return "holds" if all(check.clear for check in self.checks) else "holds, within doubt"


def above(what: str, values: Iterable[float], unit: str, bar: float = 0.0) -> Check:
    found = estimate(list(values))
    return Check(what, found, unit, found.mean > bar, found.low > bar)


def below(what: str, values: Iterable[float], unit: str, bar: float = 0.0) -> Check:
    found = estimate(list(values))
    return Check(what, found, unit, found.mean < bar, found.high < bar)


def of_the_paper(book: Book) -> list[str]:
    """The paper's selectors; one that a user adds is shown, but no claim is about it."""
    return [method for method in book.methods if method in METHODS]
