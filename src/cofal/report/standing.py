"""What the terminal shows of a deployment: the phase under way, and each site with its labelling."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def print_standing(facts: dict[str, Any], console: Console | None = None) -> None:
    """`facts` as `federation.standing.read_standing` gives them."""
    console = console or Console()
    console.print(_headline(facts), highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("site", no_wrap=True, min_width=8)
    for heading in ("up", "last seen", "samples", "labelled", "of asked", "skipped"):
        table.add_column(f" {heading}", justify="right", no_wrap=True)
    table.add_column("  ")
    for name, site in facts["sites"].items():
        up = {True: "yes", False: "no", None: "?"}[site["up"]]
        numbers = [str(site.get(key, "")) for key in ("samples", "labelled", "asked", "skipped")]
        table.add_row(name, up, ago(site.get("seen", "")), *numbers, f"  {site.get('missing', '')}")
    console.print(table)
    if told := facts.get("labels_told"):
        console.print(f"Labels as the sites told {ago(told)}; --ask asks them now.", highlight=False)


def ago(moment: str) -> str:
    """An ISO moment as a person says it: `12 s ago`."""
    if not moment:
        return "never"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _headline(facts: dict[str, Any]) -> str:
    parts = [f"Server {facts['server']}."]
    if not facts.get("phase"):
        return " ".join([*parts, "No phase was run yet."])
    parts.append(f"Phase {facts['phase']}: {facts['state']}")
    if "rounds" in facts and facts["phase"] in ("pretrain", "train"):
        parts.append(f"round {facts['round']} of {facts['rounds']}")
    if "seconds_left" in facts and facts["state"] == "running":
        parts.append(f"about {facts['seconds_left']:.0f} s left")
    if facts.get("waiting_for") and facts["state"] == "running":
        parts.append(f"waiting for {', '.join(facts['waiting_for'])}")
    if facts.get("waiting") and facts["state"] == "running":
        parts.append(facts["waiting"])
    if facts.get("reason"):
        parts.append(facts["reason"])
    return parts[0] + " " + ", ".join(parts[1:]) + "."
