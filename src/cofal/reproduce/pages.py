"""The pages: one Markdown file, CSV and picture a table or figure, and the index that a reader starts with.

All of it is made from records, so that making it again gives the same bytes.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from pathlib import Path

from cofal.errors import UserError
from cofal.files import write_text
from cofal.reproduce.book import Book
from cofal.reproduce.claims import verdict
from cofal.reproduce.claims.checks import Check, Verdict
from cofal.reproduce.records import total_seconds
from cofal.reproduce.views import auto, budgets, gaps, high_budget, lines, theory
from cofal.reproduce.views.drawing import save
from cofal.reproduce.views.page import Table, View

VIEWS: dict[str, Callable[[Book], View]] = {
    "budgets": budgets.view,
    "gaps": gaps.view,
    "aggregate": gaps.aggregate_view,
    "alpha": lines.alpha_view,
    "noise": lines.noise_view,
    "high-budget": high_budget.view,
    "theory": theory.view,
    "auto": auto.view,
}
NOTES = "notes.toml"  # claim -> why it came out as it did; written by people, after looking


def write_page(book: Book, folder: Path, command: str, facts: dict[str, dict], notes: dict[str, str]) -> list[Verdict]:
    """NAME.md, .csv, .png and .svg in `folder`; returns the verdicts of its claims."""
    experiment = book.experiment
    made = VIEWS[experiment.view](book)
    verdicts = [verdict(name, book) for name in experiment.claims]
    save(made.figure, folder / experiment.name)
    write_text(folder / f"{experiment.name}.csv", made.csv())
    parts = [
        f"# {experiment.title}\n",
        f"{experiment.paper} of the paper. {experiment.about}\n" if experiment.paper else f"{experiment.about}\n",
        f"![{experiment.title}]({experiment.name}.png)\n",
    ]
    for name, each in zip(experiment.claims, verdicts):
        parts += [_verdict_text(each), _checks_table(each.checks).markdown()]
        if name in notes:
            parts.append(notes[name].strip() + "\n")
    parts += ["## Numbers\n", f"{made.reading}\n", *(table.markdown() for table in made.tables)]
    parts += ["## How it was made\n", _made(book, command, facts)]
    write_text(folder / f"{experiment.name}.md", "\n".join(parts))
    return verdicts


def _verdict_text(each: Verdict) -> str:
    return f"**Claim {each.claim.number}: {each.claim.text}** Here it **{each.word}**.\n"


def _checks_table(checks: list[Check]) -> Table:
    table = Table(["what was checked", "value", "95 % interval", "n", "as claimed"])
    for check in checks:
        value = check.value
        spread = f"{value.low:.2f} to {value.high:.2f}" if math.isfinite(value.low) else "unknown (one seed)"
        said = ("yes" if check.clear else "yes, within doubt") if check.holds else "no"
        table.rows.append([check.what, f"{value.mean:.2f} {check.unit}".strip(), spread, str(value.n), said])
    return table


def _made(book: Book, command: str, facts: dict[str, dict]) -> str:
    seeds = sorted({record.cell.seed for record in book.records})
    found = sorted({f"{name} {version}" for record in book.records for name, version in record.versions.items()})
    told = [
        f"```\n{command}\n```\n",
        f"{len(book.records)} cells, seeds {', '.join(map(str, seeds))}, "
        f"{total_seconds(book.records):.0f} s of one core in all. {', '.join(found)}.\n",
    ]
    encoders = encoder_table([facts[name] for name in sorted(facts) if facts[name]["set"] in book.sets])
    return "\n".join([*told, *([encoders.markdown()] if encoders.rows else [])])


def encoder_table(facts: list[dict]) -> Table:
    """The trained encoders behind some pages; own encoders of one split and seed in one line."""
    table = Table(["encoder", "split", "network", "images", "rounds", "10-NN accuracy", "seconds"])
    groups: dict[tuple, list[dict]] = {}
    for fact in facts:
        if "rounds" in fact:
            split = "IID" if fact["split"] == "iid" else f"α = {fact['alpha']:g}"
            kind = "own, each client" if fact["site"] else "shared"
            groups.setdefault((fact["set"], kind, split), []).append(fact)
    for (name, kind, split), members in sorted(
        groups.items(), key=lambda item: (item[0][0], item[0][1] != "shared", item[0][2])
    ):
        accuracies = [member["knn"] for member in members]
        spread = f"{min(accuracies):.3f}" + (f" to {max(accuracies):.3f}" if len(members) > 1 else "")
        images = sorted({member["images"] for member in members})
        table.rows.append(
            [f"{name}, {kind}" + (f" ({len(members)})" if len(members) > 1 else ""), split, members[0]["arch"],
             f"{images[0]:,}", str(members[0]["rounds"]), spread, f"{sum(member['seconds'] for member in members):.0f}"]
        )  # fmt: skip
    return table


def read_notes(folder: Path) -> dict[str, str]:
    """What people wrote about verdicts at this scale, by claim; none if there is no such file."""
    path = folder / NOTES
    if not path.exists():
        return {}
    try:
        notes = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {error}; correct it") from None
    return {str(name): str(text) for name, text in notes.items()}
