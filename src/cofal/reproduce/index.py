"""README.md beside the scales' folders: what was claimed, what came out, the pictures; for two minutes of reading."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cofal.files import write_text
from cofal.reproduce.claims.checks import Verdict
from cofal.reproduce.grid import Experiment
from cofal.reproduce.pages import encoder_table
from cofal.reproduce.views.page import Table

_ABOUT = {
    "smoke": "scikit-learn's digits, in seconds: keeps every path alive, says little about the claims.",
    "cpu": "Real images on two CPU cores: encoders of federated SimCLR trained here, small and briefly; selection also "
    "at full size on a public encoder's embeddings of CIFAR-10.",
    "paper": "The paper's own set-up.",
}
_SIGN = {"holds": "✅", "holds, within doubt": "🟢", "holds in part": "🟡", "does not hold": "❌"}
_SHOWN = (
    "fig-same-embedding",
    "fig-alpha",
    "fig-gap-iid",
    "fig-aggregate",
    "fig-noise",
    "fig-high-budget",
    "theory",
    "auto",
)


@dataclass
class Finished:
    """What one scale has to show."""

    scale: str
    pages: dict[str, Experiment] = field(default_factory=dict)  # by name, those whose records are all there
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # by claim, from the page that decides it
    missing: list[str] = field(default_factory=list)
    facts: dict[str, dict] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    command: str = ""


def write_index(path: Path, scales: list[Finished]) -> None:
    parts = [
        "# The paper, made again\n",
        "Claims of *Coordination on a Budget*, checked by `cofal reproduce`. Every number comes from the records "
        "here; verdicts follow from 95 % intervals over seeds. ✅ holds · 🟢 holds, though some interval spans zero · "
        "🟡 holds in part · ❌ does not hold.\n",
    ]
    for each in scales:
        parts += _scale(each)
    write_text(path, "\n".join(parts))


def _scale(each: Finished) -> list[str]:
    table = Table(["", "claim", "here", "figures behind it"])
    for name, found in sorted(each.verdicts.items(), key=lambda item: item[1].claim.number):
        pages = [page for page, experiment in each.pages.items() if name in experiment.claims]
        sign = f"{_SIGN[found.word]} {found.word}"
        links = ", ".join(f"[{page}]({each.scale}/{page}.md)" for page in pages)
        why = f" {each.notes[name].strip()}" if name in each.notes else ""
        table.rows.append([str(found.claim.number), found.claim.text, f"{sign}.{why}", links])
    parts = [f"## Scale `{each.scale}`\n", f"{_ABOUT[each.scale]}\n", table.markdown()]
    parts += [
        f"[![{each.pages[name].title}]({each.scale}/{name}.png)]({each.scale}/{name}.md)\n"
        for name in _SHOWN
        if name in each.pages
    ]
    tables = [f"[{name}]({each.scale}/{name}.md)" for name in each.pages if name not in _SHOWN]
    if tables:
        parts.append(f"More tables and figures: {', '.join(tables)}.\n")
    if each.missing:
        parts.append(f"Not computed yet: {', '.join(each.missing)}.\n")
    encoders = encoder_table([each.facts[name] for name in sorted(each.facts)])
    if encoders.rows:
        parts += [
            "Encoders trained here (10-NN accuracy on the test images; own encoders: worst to best):\n",
            encoders.markdown(),
        ]
    parts.append(f"Made by `{each.command}`.\n")
    return parts
