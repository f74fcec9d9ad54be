"""The headline of a report: a sentence that is true to the numbers, whichever way they fell, and figures under it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cofal.errors import UserError
from cofal.evaluation.curves import coordination_gap, mean_height
from cofal.report.facts import ALONE, VEILED, WORDS, Curve, Facts, title, track_title
from cofal.report.redundancy import Redundancy

CHOOSING = {**WORDS, VEILED: "together from aggregates"}


@dataclass(frozen=True)
class Tile:
    """One figure beside the headline: the number, what it is, and what to hold it against."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """The headline, what it rests on, and the selector it speaks of."""

    method: str
    headline: str
    lead: list[str]  # sentences
    tiles: list[Tile]


def percent(share: float) -> str:
    """0.8125 -> `81.2 %` (with a space that does not break)."""
    return f"{100 * share:.1f}\u00a0%"


def find(facts: Facts, repeated: Redundancy | None = None) -> Finding:
    """What the run says about choosing together against choosing alone; failing that, about its best selector."""
    if facts.pairs:
        return _compared(facts, repeated)
    return _single(facts)


def gap(budgets: Sequence[int], together: Curve, alone: Curve) -> float | None:
    """The paper's empirical coordination gap in percent; None where the central curve has no area to compare with."""
    try:
        return coordination_gap(budgets, together, alone)
    except UserError:
        return None


def cheaper(budgets: Sequence[int], ahead: Curve, behind: Curve) -> tuple[int, int] | None:
    """(fewer, more): with `fewer` labels `ahead` is where `behind` is with its last `more`; None if it never is."""
    for budget, value in zip(budgets, ahead):
        if value >= behind[-1]:
            return (budget, budgets[-1]) if budget < budgets[-1] else None
    return None


def uncertainty(accuracy: float, tests: int) -> float:
    """Half width of the 95 % interval of an accuracy measured on `tests` images (normal approximation)."""
    return 1.96 * math.sqrt(max(accuracy * (1 - accuracy), 0.0) / tests)


def _compared(facts: Facts, repeated: Redundancy | None) -> Finding:
    budgets = facts.budgets
    # By the mean of both curves, so that the choice of the headline's selector favours neither side.
    ways = (facts.together, ALONE)
    method = max(facts.pairs, key=lambda name: sum(mean_height(budgets, facts.curves[name, way]) for way in ways))
    together, alone = facts.curves[method, facts.together], facts.curves[method, ALONE]
    ours, theirs = mean_height(budgets, together), mean_height(budgets, alone)
    span = _span(budgets)
    tail = ""
    if percent(ours) == percent(theirs):
        tail = ": coordination made no difference"
    elif ours < theirs:
        tail = ": coordination did not pay here"
    headline = (
        f"{span}, {_who(method, facts.together)} reached {percent(ours)}{_average(budgets)}; "
        f"choosing alone {percent(theirs)}{tail}"
    )
    lead = [f"{_measure(budgets)} with {title(method)}{_strongest(facts)}.", _tally(facts)]
    if facts.random is not None:
        lead.append(f"Labels picked at random gave {percent(mean_height(budgets, facts.random))}.")
    lead.append(_caution(facts, (ours + theirs) / 2))
    tiles = _labels(facts, together, alone)
    if repeated and {(method, facts.together), (method, ALONE)} <= facts.picks.keys():
        tiles.append(_repeats(facts, method, repeated))
    elif (lost := gap(budgets, together, alone)) is not None:
        word = "lost" if lost >= 0 else "won"
        tiles.append(Tile(f"{abs(lost):.1f}\u00a0%", f"of the area under the curve {word} by choosing alone"))
    return Finding(method, headline, [sentence for sentence in lead if sentence], tiles)


def _labels(facts: Facts, together: Curve, alone: Curve) -> list[Tile]:
    """Accuracy with the fewest labels, and how many labels the better side saves."""
    budgets = facts.budgets
    if len(budgets) == 1:
        return []
    beside = f"{percent(alone[0])} alone" + (f", {percent(facts.random[0])} at random" if facts.random else "")
    tiles = [Tile(percent(together[0]), f"together, with the fewest labels ({budgets[0]})", beside)]
    saved, lost = cheaper(budgets, together, alone), cheaper(budgets, alone, together)
    if saved:
        tiles.append(
            Tile(
                f"{saved[0]} labels",
                f"together do what {saved[1]} do alone",
                f"both reach at least {percent(alone[-1])}",
            )
        )
    elif lost:
        tiles.append(
            Tile(
                f"{lost[0]} labels",
                f"alone do what {lost[1]} do together",
                f"both reach at least {percent(together[-1])}",
            )
        )
    return tiles


def _repeats(facts: Facts, method: str, repeated: Redundancy) -> Tile:
    number = facts.budgets.index(facts.map_budget)
    alone, together = (repeated.shares((method, kind))[number] for kind in (ALONE, facts.together))
    picks = f"of the first {facts.map_budget} picks" if len(facts.budgets) > 1 else "of the picks"
    return Tile(
        f"{100 * alone:.0f}\u00a0%",
        f"{picks} repeat another client's when alone",
        f"{100 * together:.0f}\u00a0% together",
    )


def _single(facts: Facts) -> Finding:
    """No method ran both ways: the best track, against random where there is one."""
    budgets = facts.budgets
    (method, coordination), curve = max(facts.curves.items(), key=lambda item: mean_height(budgets, item[1]))
    chosen = {key: value for key, value in facts.curves.items() if key[0] != "random"}
    if chosen:
        (method, coordination), curve = max(chosen.items(), key=lambda item: mean_height(budgets, item[1]))
    reached = mean_height(budgets, curve)
    headline = f"{_span(budgets)}, {_who(method, coordination)} reached {percent(reached)}{_average(budgets)}"
    if chosen and facts.random is not None:
        yardstick = mean_height(budgets, facts.random)
        headline += f"; picking at random {percent(yardstick)}"
        if percent(reached) == percent(yardstick):
            headline += ": choosing made no difference"
        elif reached < yardstick:
            headline += ": choosing did not pay here"
    lead = [f"{_measure(budgets)} with {track_title(method, coordination)}.", _caution(facts, reached)]
    if len(chosen) > 1:
        lead.insert(1, f"It did best of the {len(chosen)} tracks.")
    return Finding(method, headline, [sentence for sentence in lead if sentence], [])


def _who(method: str, coordination: str) -> str:
    if method == "random":
        return "picking at random"
    return f"choosing {CHOOSING.get(coordination, coordination)}"


def _span(budgets: Sequence[int]) -> str:
    return f"With {budgets[0]} labels" if len(budgets) == 1 else f"With {budgets[0]} to {budgets[-1]} labels"


def _average(budgets: Sequence[int]) -> str:
    return " on average" if len(budgets) > 1 else ""


def _measure(budgets: Sequence[int]) -> str:
    return "Test accuracy" if len(budgets) == 1 else "Test accuracy, averaged over the budgets,"


def _strongest(facts: Facts) -> str:
    return ", the best selector over both ways" if len(facts.pairs) > 1 else ""


def _tally(facts: Facts) -> str:
    """On how many selectors choosing together was ahead, so that a headline about one of them hides nothing."""
    if len(facts.pairs) < 2:
        return ""
    ways = (facts.together, ALONE)
    heights = [[mean_height(facts.budgets, facts.curves[name, way]) for way in ways] for name in facts.pairs]
    ahead = sum(together > alone for together, alone in heights)
    return f"Choosing together was ahead with {ahead} of {len(heights)} selectors."


def _caution(facts: Facts, accuracy: float) -> str:
    tests = facts.data.get("test")
    if not tests:
        return "One run with one seed: small differences may be chance."
    points = max(100 * uncertainty(accuracy, tests), 1.0)
    return f"One run with one seed and {tests:,} test images: an accuracy is uncertain by about ±{points:.0f} points."
