"""The report's section on what was asked and why, and what the report cannot show; a deployment's trainings with it."""

from __future__ import annotations

from typing import Any

from cofal.files import read_json
from cofal.report.facts import ALONE, MEASURED, TOGETHER, VEILED, Facts, title, track_title
from cofal.report.finding import percent
from cofal.rundir import MAIN

# What a method asks for, and among what, as a person would say it.
METHODS = {
    "maxherding": "asks, one after the other, for the image that brings the most others nearer to a labelled one",
    "probcover": "asks, one after the other, for the image with the most others around it that none covers yet",
    "typiclust": "divides the images into as many groups as there are labels and asks for the most typical one of each",
    "random": "asks for images drawn at random: a yardstick",
}
AMONG = {
    TOGETHER: "among the images of all clients, within the budget of each",
    VEILED: "among all clients, of which it sees centroids, counts and distances; only a client knows which image",
    ALONE: "at each client alone, which knows nothing of the others",
    MEASURED: "among those clients whose images are alike",
}


def asked(facts: Facts) -> dict[str, Any]:
    """How every track chose, in words; for a deployment also its selections and trainings, in the order of time."""
    reasons = []
    for method in facts.methods:
        how = METHODS.get(method, "asks for images by a rule of its own")
        among = [AMONG[kind] for each, kind in facts.curves if each == method and kind in AMONG and method != "random"]
        reasons.append((title(method), f"{how}{': ' if among else ''}{'; or '.join(among)}."))
    return {"reasons": reasons, "table": _by_time(facts) if facts.deployed else None}


def absent(facts: Facts, present: set[str]) -> list[str]:
    """What a reader may look for in vain, each with the reason."""
    found = []
    if facts.deployed and "coordination" not in present:
        found.append(
            "What choosing alone, or picking at random, would have reached: a deployment spends each label once. "
            "cofal run compares them where labels are known; cofal advise estimates what choosing together is worth."
        )
    elif "coordination" not in present:
        found.append("The coordination gap: no selector ran both together and alone.")
    if "map" not in present:
        found.append("A map: nothing of the embeddings was sent, or too little to draw.")
    if "redundancy" not in present and len(facts.clients) > 1:
        found.append("Redundancy between clients: it needs the embedding of every pick, and the clients kept theirs.")
    if "pictures" not in present:
        found.append(
            "Pictures, labels and their balance over the classes: they stay where they are. "
            "A site sees its own with cofal report SITE_DIR."
        )
    return found


def _by_time(facts: Facts) -> dict[str, Any]:
    """Rows of a table: [what, how, by site, in all, accuracy]."""
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
