"""The report's section on a deployment: what each selection asked for and each training had, in the order of time."""

from __future__ import annotations

from typing import Any

from cofal.files import read_json
from cofal.report.facts import Facts, track_title
from cofal.report.finding import percent
from cofal.rundir import MAIN


def labelling(facts: Facts) -> dict[str, Any] | None:
    """Rows of a table: [what, how, by site, in all, accuracy]; None for an experiment, where nobody labelled."""
    if not facts.run.picks(MAIN).exists():
        return None
    steps: list[dict[str, Any]] = read_json(facts.run.picks(MAIN))["steps"]
    trained = sorted(facts.results, key=lambda cell: cell.get("training", 0))
    names = sorted({pick["client"] for step in steps for pick in step["picks"]} | set(facts.clients))
    rows = []
    for number in range(len(steps) + 1):
        if number:
            step = steps[number - 1]
            asked = [sum(pick["client"] == name for pick in step["picks"]) for name in names]
            how = track_title(step["method"], step["coordination"])
            rows.append([f"Selection {number}", how, [str(count) for count in asked], f"{sum(asked)} asked", ""])
        for cell in trained:
            if cell.get("selection") == number:
                counts = [_words(cell["sites"].get(name)) for name in names]
                rows.append(
                    [f"Training {cell['training']}", "", counts, f"{cell['budget']} labels", percent(cell["accuracy"])]
                )
    return {"names": names, "rows": rows}


def _words(counts: dict[str, int] | None) -> str:
    if counts is None:
        return "away"
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return f"{counts['labelled']} of {counts['asked']}{skipped}"
