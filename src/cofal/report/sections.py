"""The sections of a report that show what the run found; `account` has what was run and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cofal.report.chart import Series, bar_chart, line_chart
from cofal.report.embedding_map import SIDE, Map, Picks
from cofal.report.facts import ALONE, VEILED, WORDS, Facts, title, track_title
from cofal.report.finding import gap, percent
from cofal.report.pictures import Gallery
from cofal.report.redundancy import Redundancy

Section = dict[str, Any]
_MOST_PICKS_SHOWN = 300
_MOST_CLASSES = 20
_SMALL_GAP = 5.0  # percent


def accuracy(facts: Facts) -> Section:
    """The accuracy-budget curves and the numbers behind them; with one budget, bars from 0 to 100 %."""
    table = _table(facts, facts.curves)
    if len(facts.budgets) == 1:
        values = [(track_title(*track), track[0], curve[0], percent(curve[0])) for track, curve in facts.curves.items()]
        told = "; ".join(f"{name} {text}" for name, _, _, text in values)
        description = f"Test accuracy with {facts.budgets[0]} labels: {told}."
        return {"bars": bar_chart(values, least=1.0, description=description), "chart": None, "table": table}
    chart = _by_budget(facts, facts.curves, "Test accuracy, %", "Test accuracy by number of labels, one line a track.")
    return {"bars": None, "chart": chart, "table": table}


def coordination(facts: Facts) -> Section | None:
    """The empirical coordination gap of every method that ran both ways."""
    gaps = {
        method: gap(facts.budgets, facts.curves[method, facts.together], facts.curves[method, ALONE])
        for method in facts.pairs
    }
    bars = [
        (title(method), method, value, f"{value:+.1f}\u00a0%".replace("-", "−"))
        for method, value in gaps.items()
        if value is not None
    ]
    if not bars:
        return None
    told = "; ".join(f"{name} {text}" for name, _, _, text in bars)
    return {
        "chart": bar_chart(bars, least=_SMALL_GAP, description=f"Coordination gap by selector: {told}."),
        "single": len(facts.budgets) == 1,
    }


def redundancy(facts: Facts, found: Redundancy) -> Section:
    """The share of redundant picks by track and budget."""
    curves = {track: found.shares(track) for track in facts.picks}
    chart = _by_budget(
        facts,
        curves,
        "Redundant picks, %",
        "Share of picks that another client's pick makes redundant, one line a track.",
        floor=0.0,
    )
    return {"chart": chart, "table": _table(facts, curves)}


def embedding_map(facts: Facts, places: Map, marked: Picks, found: Redundancy | None) -> Section:
    """The map with the picks of every track; one selector and budget show at first, the script shows others."""
    clients = list(places.places)
    # Where only centroids are known, the picks' directions are no dots of their own, and no image has a name.
    marks = {pick.id for picks in marked.values() for pick in picks} if places.centroids else set()
    dots = [{sample: at for sample, at in spots.items() if sample not in marks} for spots in places.places.values()]
    panels = []
    for kind in WORDS:
        tracks = [
            {
                "method": method,
                "name": track_title(method, kind),
                "picks": [
                    {
                        "x": places.places[pick.client][pick.id][0],
                        "y": places.places[pick.client][pick.id][1],
                        "rank": pick.rank + 1,
                        "client": clients.index(pick.client),
                        "redundant": found.since((method, kind), pick) if found else [],
                        "tip": f"{'which image, its site knows' if places.centroids else pick.id}\n{pick.client}\n"
                        f"asked as number {pick.rank + 1}",
                    }
                    for pick in picks[:_MOST_PICKS_SHOWN]
                ],
            }
            for (method, coordination), picks in marked.items()
            if coordination == kind
        ]
        if tracks:
            panels.append({"kind": kind, "word": WORDS[kind], "tracks": tracks})
    return {
        "side": SIDE,
        "methods": list(dict.fromkeys(method for method, _ in marked)),
        "clients": clients,
        "layers": [" ".join(f"M{x} {y}h0" for x, y in spots.values()) for spots in dots],
        "points": [[[x, y, sample] for sample, (x, y) in spots.items()] for spots in dots],
        "centroids": places.centroids,
        "least": facts.config.selection.min_region,
        "alone": facts.heard[2] if places.centroids and facts.heard else 0,
        "picks": facts.heard[2] + facts.heard[0].terms["picks"] if places.centroids and facts.heard else 0,
        "panels": panels,
        "shown": facts.map_budget,
        "budgets": [budget for budget in facts.budgets if budget <= _MOST_PICKS_SHOWN] or facts.budgets[:1],
        "drawn": places.shown,
        "total": places.total,
        "rings": found is not None,
    }


def pictures(facts: Facts, found: Gallery) -> Section:
    """The first picks of each client, and how many classes each track had seen by each budget."""
    blocks = [
        {
            "method": method,
            "sides": [
                {"name": track_title(method, kind), "clients": found.first(facts.picks[method, kind])}
                for kind in WORDS
                if (method, kind) in facts.picks
            ],
        }
        for method in dict.fromkeys(method for method, _ in facts.picks)
    ]
    rows = [
        (track_title(*track), track[0], [str(found.classes_seen(picks, budget)) for budget in facts.budgets])
        for track, picks in facts.picks.items()
    ]
    shown = facts.budgets[-1]
    counts = {track_title(*track): Counter(map(found.label, picks[:shown])) for track, picks in facts.picks.items()}
    return {
        "blocks": blocks,
        "seen": rows,
        "classes": len(found.classes),
        "balance": balance(found.classes, counts),
        "shown": shown,
    }


def balance(classes: Sequence[str], counts: Mapping[str, Mapping[str | None, int]]) -> Section:
    """How many labels of each class, by name of a column; of many classes, those with the most labels."""
    total = {name: sum(each.get(name, 0) for each in counts.values()) for name in classes}
    order = list(classes) if len(classes) <= _MOST_CLASSES else sorted(classes, key=lambda name: -total[name])
    most = max((each.get(name, 0) for each in counts.values() for name in classes), default=0)
    return {
        "names": list(counts),
        "rows": [(name, [each.get(name, 0) for each in counts.values()]) for name in order[:_MOST_CLASSES]],
        "most": max(most, 1),
        "more": max(0, len(classes) - _MOST_CLASSES),
    }


def encoder(facts: Facts) -> Section | None:
    """Loss and nearest-neighbour probe of Phase I, round by round."""
    rounds = facts.encoder_rounds
    if not rounds:
        return None
    charts = [_by_round(rounds, "loss", "Contrastive loss", percent_axis=False)]
    probed = [line for line in rounds if "knn" in line]
    if len(probed) > 1:
        charts.append(_by_round(probed, "knn", "10-nearest-neighbour accuracy, %", percent_axis=True))
    return {"charts": charts, "probe": percent(probed[-1]["knn"]) if probed else "", "rounds": rounds[-1]["round"]}


def _by_budget(
    facts: Facts, curves: dict[tuple[str, str], list[float]], y_title: str, description: str, **options: Any
) -> Any:
    series = [
        Series(
            track_title(method, kind),
            list(zip(facts.budgets, curve, strict=True)),
            [
                f"{track_title(method, kind)}\n{budget} labels\n{percent(value)}"
                for budget, value in zip(facts.budgets, curve)
            ],
            method,
            dashed="" if method == "random" else {ALONE: "dashed", VEILED: "dotted"}.get(kind, ""),
        )
        for (method, kind), curve in curves.items()
    ]
    series.sort(key=lambda each: each.method != "random")  # the yardstick lies under the lines it measures
    return line_chart(series, x_title="Labels in all", y_title=y_title, description=description, **options)


def _by_round(lines: list[dict[str, Any]], key: str, name: str, *, percent_axis: bool) -> Any:
    values = [(float(line["round"]), float(line[key])) for line in lines]
    tips = [f"Round {line['round']}\n" + (percent(line[key]) if percent_axis else f"{line[key]:.3f}") for line in lines]
    return line_chart(
        [Series(name, values, tips, "encoder")],
        x_title="Round",
        y_title=name,
        description=f"{name} by round, from {tips[0].splitlines()[1]} to {tips[-1].splitlines()[1]}.",
        width=400,
        height=240,
        percent=percent_axis,
        direct_labels=False,
    )


def _table(facts: Facts, curves: dict[tuple[str, str], list[float]]) -> list[tuple[str, str, list[str]]]:
    return [
        (track_title(*track), track[0], [f"{100 * value:.1f}" for value in curve]) for track, curve in curves.items()
    ]
