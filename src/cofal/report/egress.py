"""What left the sites, phase by phase: as the server counted it, and as a site's own ledger has it."""

from __future__ import annotations

from typing import Any

from cofal.privacy.ledger import Reading
from cofal.report.account import in_order, phase_title, size
from cofal.report.facts import Facts

# From the most telling kind to the least, as a person would say it; the last two are replies that held nothing.
WORDS = {
    "raw": "raw embeddings, one an image",
    "perturbed": "noised embeddings, one an image",
    "aggregate": "sums and counts of groups of images, coarse distances of single ones",
    "secure-sum": "masked numbers, readable only as a sum over all sites",
    "model": "model weights",
    "ids": "names of picked images",
    "metric": "losses and counts",
    "description": "name, classes, numbers of images",
    "nothing": "acknowledgements",
    "undeclared": "not declared by the site",
    "refused": "refused by the site's policy",
    "failed": "an error in place of an answer",
}
_EMPTY = ("refused", "failed")
_NOISE = ("epsilon", "mechanism", "noise")

Left = dict[str, dict[str, dict[str, int]]]  # site -> kind -> messages, up, down


def egress(facts: Facts) -> dict[str, Any] | None:
    """Rows by phase and kind, totals by site and kind; None for a run that did not count by kind."""
    phases: dict[str, Left] = {
        phase: counted["left"]
        for phase, counted in in_order(facts.info.get("traffic", {})).items()
        if counted.get("left")
    }
    if not phases:
        return None
    rows = [row for phase, left in phases.items() for row in _rows(phase_title(phase), left)]
    kinds = [kind for kind in WORDS if any(row["kind"] == kind for row in rows)]
    sites = sorted({site for left in phases.values() for site in left})
    sent = {
        site: {kind: sum(left.get(site, {}).get(kind, {}).get("up", 0) for left in phases.values()) for kind in kinds}
        for site in sites
    }
    shown = [kind for kind in kinds if kind not in _EMPTY]
    most = shown[0] if shown else "nothing"
    return {
        "rows": rows,
        "most": {"kind": most, "words": WORDS[most], "each": _each([sent[site].get(most, 0) for site in sites])},
        "kinds": shown,
        "sites": [(site, [size(sent[site][kind]) for kind in shown], size(sum(sent[site].values()))) for site in sites],
        "refused": sum(row["messages"] for row in rows if row["kind"] == "refused"),
    }


def _rows(phase: str, left: Left) -> list[dict[str, Any]]:
    """One row for each kind that left in a phase."""
    found: list[dict[str, Any]] = []
    for kind, words in WORDS.items():
        counted = [kinds[kind] for kinds in left.values() if kind in kinds]
        if counted:
            found.append(
                {
                    "phase": "" if found else phase,
                    "kind": kind,
                    "words": words,
                    "messages": sum(each["messages"] for each in counted),
                    "up": _each([each["up"] for each in counted]),
                    "down": _each([each["down"] for each in counted]),
                }
            )
    return found


def _each(counts: list[int]) -> str:
    """`4 × 0.9 MB`: what each of four sites sent; `4 × 0.7 MB to 0.9 MB` if they differ."""
    least, most = size(min(counts)), size(max(counts))
    return f"{len(counts)}\u00a0×\u00a0{least}" + (f" to {most}" if most != least else "")


def ledger_account(reading: Reading) -> dict[str, Any]:
    """Totals, rows by phase and kind, and the refusals, of the lines that fit the chain."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    noises: dict[tuple[Any, ...], int] = {}
    refused = []
    for entry in reading.entries:
        if "refused" in entry:
            refused.append({key: entry[key] for key in ("number", "time", "phase", "kind", "refused")})
            continue
        place = (entry["phase"], entry["kind"])
        row = rows.setdefault(place, {"phase": place[0], "kind": place[1], "messages": 0, "bytes": 0, "last": ""})
        row["messages"] += 1
        row["bytes"] += entry["bytes"]
        row["last"] = entry["time"]
        if "noise" in entry["parameters"]:
            noise = tuple(entry["parameters"].get(name) for name in _NOISE)
            noises[noise] = noises.get(noise, 0) + 1
    return {
        "messages": sum(row["messages"] for row in rows.values()),
        "bytes": sum(row["bytes"] for row in rows.values()),
        "rows": list(rows.values()),
        "noise": [{**dict(zip(_NOISE, noise)), "messages": count} for noise, count in noises.items()],
        "refused": refused,
        "lines": len(reading.entries),
        "head": reading.head,
        "broken": reading.broken,
        "doubt": reading.doubt,
    }


def ledger_questions(reading: Reading) -> list[dict[str, Any]]:
    """The questions of aggregate selections, answered or not: number and time of the line, and what was asked."""
    found = (entry for entry in reading.entries if "numbers" in entry["parameters"])
    return [
        {"number": entry["number"], "time": entry["time"], "sent": "refused" not in entry, **entry["parameters"]}
        for entry in found
    ]
