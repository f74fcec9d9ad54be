"""An attack study as files: JSON, a Markdown table, two pictures, and one HTML page for the person who must decide."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from cofal.files import write_bytes, write_json, write_text
from cofal.privacy.attacks.figures import leakage, pictures
from cofal.privacy.attacks.study import Row, Study
from cofal.privacy.attacks.template import TEMPLATE
from cofal.report.facts import title
from cofal.report.finding import percent
from cofal.selection.aggregate.select import METHODS

FILES = ["attack.json", "attack.md", "leakage.png", "pictures.png", "attack.html"]
HEADINGS = [
    "what leaves a client",
    "accuracy",
    "was it there? (AUC)",
    "members found at 1 % false alarms",
    "named among candidates",
    "PSNR (dB)",
    "SSIM",
    "class still seen",
    "kappa",
]
SHORT = ["what leaves", "accuracy", "there?", "found", "named", "PSNR", "SSIM", "class", "kappa"]  # for a terminal


def cells(row: Row) -> list[str]:
    """One level as text, under `HEADINGS`."""
    near = row.likeness
    return [
        row.level.name,
        f"{100 * row.accuracy:.1f} ± {100 * row.accuracy_error:.1f} %",
        f"{row.membership:.3f}",
        f"{100 * row.recognised_members:.1f} %",
        "-" if row.reidentified is None else f"{100 * row.reidentified:.1f} %",
        f"{near.psnr:.1f}",
        f"{near.ssim:.2f}",
        f"{100 * near.recognised:.0f} %",
        "-" if row.kappa is None else f"{row.kappa:,.0f}",
    ]


def write_study(study: Study, out: Path, command: str) -> list[Path]:
    """Write everything into the folder `out`; returns the files, the page last."""
    plot, grid = leakage(study), pictures(study)
    write_json(out / FILES[0], content(study, command))
    write_text(out / FILES[1], markdown(study, command))
    write_bytes(out / FILES[2], plot)
    write_bytes(out / FILES[3], grid)
    write_text(out / FILES[4], html(study, command, plot, grid))
    return [out / name for name in FILES]


def content(study: Study, command: str) -> dict[str, Any]:
    """The figures for machines."""
    return {
        "command": command,
        **study.facts,
        "this run sent": {
            "level": study.sent.level.name,
            "aggregates": study.sent.aggregates,
            "secure_sums": study.sent.masked,
        },
        "reidentified with the seed known": study.known_seed,
        "class seen in real images": study.ceiling,
        "levels": [
            {
                "name": row.level.name,
                "epsilon": row.level.epsilon if row.level.kind == "noise" else None,
                "mechanism": row.level.mechanism if row.level.kind == "noise" else None,
                "accuracy": row.accuracy,
                "accuracy_error": row.accuracy_error,
                "membership_auc": row.membership,
                "membership_found_at_1_percent": row.recognised_members,
                "membership_by_attack": row.by_attack,
                "reidentified": row.reidentified,
                "psnr": row.likeness.psnr,
                "ssim": row.likeness.ssim,
                "class_seen": row.likeness.recognised,
                "kappa": row.kappa,
            }
            for row in study.rows
        ],
        "regions": study.regions,
    }


def markdown(study: Study, command: str) -> str:
    """Both tables and what they mean, as Markdown."""
    lines = [
        "# What an attacker gets out of what leaves a client",
        "",
        f"**{finding(study)}.** {price(study)}",
        "",
        f"`{command}`",
        "",
    ]
    lines += [*(f"{paragraph}\n" for paragraph in explanation(study)), ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "| --- |" + " ---: |" * (len(HEADINGS) - 1)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in study.rows]
    lines += ["", *(f"* {note}" for note in remarks(study))]
    lines += ["", "## Membership from one release of regions", "", regions_text(study), ""]
    lines += ["| " + " | ".join(REGION_HEADINGS) + " |", "|" + " ---: |" * len(REGION_HEADINGS)]
    lines += ["| " + " | ".join(each) + " |" for each in region_rows(study)]
    return "\n".join(lines) + "\n"


REGIONS_TEXT = (
    "Every client tells the means and counts of regions of its samples, once, each region holding at least min_region "
    "of them. All are asked for the same number at most; the table has the regions of all clients together. The "
    "attacker looks at distances to the means, or at how far a mean is drawn towards a candidate."
)
REGION_HEADINGS = [
    "regions asked for (at most)",
    "min_region",
    "regions told",
    "smallest",
    "AUC by distance",
    "AUC by likelihood",
]


def _alike(study: Study) -> list[list[dict[str, float]]]:
    """The releases, those together that differ in nothing but in what min_region was."""
    groups: dict[tuple[float, ...], list[dict[str, float]]] = {}
    for each in study.regions:
        groups.setdefault(tuple(value for name, value in each.items() if name != "min_region"), []).append(each)
    return list(groups.values())


def regions_text(study: Study) -> str:
    if all(len(alike) == 1 for alike in _alike(study)):
        return REGIONS_TEXT
    return f"{REGIONS_TEXT} Where a row has several min_region, no region was smaller than any of them."


def region_rows(study: Study) -> list[list[str]]:
    """One release a row as text, under `REGION_HEADINGS`."""
    return [
        [
            f"{each['asked']:.0f}",
            ", ".join(f"{one['min_region']:.0f}" for one in alike),
            f"{each['regions']:.0f}",
            f"{each['smallest']:.0f}",
            f"{each['distance']:.3f}",
            f"{each['likelihood']:.3f}",
        ]
        for alike in _alike(study)
        for each in alike[:1]
    ]


def explanation(study: Study) -> list[str]:
    """What was done, in plain words."""
    facts = study.facts
    own = facts["attacker's own images"]
    return [
        "The attacker plays a curious server. It knows the encoder and the kind and amount of noise, and has "
        f"{own:,} images of the same kind as its own. It attacks what {facts['clients']} clients send of "
        f"{facts['images attacked']:,} private images ({facts['dimensions']} numbers an image). "
        f"{facts['outsiders']:,} further images of the same kind were not there and serve as a check.",
        "Was it there? The attacker holds an image and asks whether a client has it. AUC 0.5 is a coin toss, 1 is "
        f"certainty. Named among candidates: which of {facts['candidates']:,} images belongs to an embedding "
        f"(guessing: {100 / facts['candidates']:.1f} %). PSNR, SSIM and 'class still seen' compare pictures rebuilt "
        f"from what was sent with the originals; a classifier sees the class of {100 * study.ceiling:.0f} % of the "
        "originals. The last row is the best guess of someone who is sent nothing.",
    ]


def remarks(study: Study) -> list[str]:
    """What the numbers say that a reader should not miss."""
    found = [
        f"With the seed of the noise known, {100 * study.known_seed:.0f} % are named at epsilon 0.6: the noise is "
        "simply taken off. A deployment must draw it from the operating system."
    ]
    for row in study.rows:
        if row.by_attack:
            parts = ", ".join(f"{name} {area:.3f}" for name, area in row.by_attack.items())
            found.append(f"Membership from {row.level.name} ({study.facts['method']}), AUC by attack: {parts}.")
    found += _on_aggregates(study)
    found.append(
        "kappa is vmf's proven bound: odds between two possible images at distance r shift by at most exp(kappa r). "
        "A dash means that nothing is proven."
    )
    found.append(
        "An attacker with more images or more computing time can do better than this one: read leaks as lower bounds."
    )
    return found


def _on_aggregates(study: Study) -> list[str]:
    """Whose exchange the row of aggregates is, and what the attacker sees of it."""
    sent, method = study.sent, study.facts["method"]
    others = " or ".join(each for each in METHODS if each != method)
    whose = f"The row 'aggregates' is the exchange of {title(method)}, min_region {study.facts['min_region']}"
    if sent.aggregates and method not in sent.methods:
        whose += f", while this run chose by {' and '.join(map(title, sent.methods))}"
    if sent.masked:
        seen = (
            "each client's own answers about its regions and distances, but of all that is summed the totals alone, as "
            "under the secure sums of this run"
        )
    else:
        when = "in this run" if sent.aggregates else "without secure sums"
        seen = f"what a server sees {when}: all answers of each client, its own part of every sum included"
    return [
        f"{whose}; option 'method' takes {others} instead.",
        f"The attacker on aggregates sees {seen}.",
        "Pictures from aggregates are rebuilt from the mean of the region that an image falls into: which region that "
        "is, a server does not know.",
    ]


def finding(study: Study) -> str:
    """The headline: what the run itself let leave, and what an attacker gets out of that."""
    own, raw, usual = _compared(study)
    found = f"To choose, the clients of this run sent {study.sent.words}: {_gained(own)}"
    if raw is not None and own is not raw:
        return f"{found}, where raw embeddings would give away {_share(_given_away(raw, own))}"
    if usual is not None:
        return f"{found}; noise of {usual.level.epsilon:g} would leave {_share(_given_away(usual, own))}"
    return found


def price(study: Study) -> str:
    """What stands below the headline: what the run's way of choosing costs, and what else it gives away."""
    own, raw, usual = _compared(study)
    told = f"Accuracy is {percent(own.accuracy)}"
    if raw is not None and own is not raw:
        told += f", with raw embeddings {percent(raw.accuracy)}"
    elif usual is not None:
        told += f", with noise of {usual.level.epsilon:g} {percent(usual.accuracy)}"
    if own.level.kind == "aggregate":
        told += (
            f". In pictures rebuilt from the means of their regions the class of "
            f"{_share(own.likeness.recognised)} of the images is still seen"
        )
    return f"{told}."


def _compared(study: Study) -> tuple[Row, Row | None, Row | None]:
    """The run's own level; raw embeddings; and, if the run sent those, noise of 0.6 or about so much."""
    own = next(row for row in study.rows if row.level == study.sent.level)
    noised = [row for row in study.rows if row.level.kind == "noise"]
    raw = next((row for row in noised if row.level.epsilon == 0), None)
    some = [row for row in noised if row.level.epsilon > 0 and own is raw]
    return own, raw, min(some, key=lambda row: abs(row.level.epsilon - 0.6), default=None)


def _gained(row: Row) -> str:
    """What an attacker has from a level."""
    if row.level.kind == "nothing":
        return "an attacker can only guess who was there"
    share = _share(_given_away(row, row))
    if row.level.kind == "noise":
        return f"an attacker traces {share} of them to their image"
    return f"an attacker recognises {share} of the images that were there, at {_share(0.01)} false alarms"


def _given_away(row: Row, like: Row) -> float:
    """Of a level, the figure that the headline gives of the level `like`."""
    return row.recognised_members if like.reidentified is None or row.reidentified is None else row.reidentified


def _share(share: float) -> str:
    """Of few, with a digit more."""
    return percent(share) if 0 < share < 0.1 and share != 0.01 else f"{100 * share:.0f}\u00a0%"


def _bound(text: str) -> str:
    """A number and its % on one line."""
    return text.replace(" %", "\u00a0%")


def html(study: Study, command: str, plot: bytes, grid: bytes) -> str:
    """One page that needs no other file; it looks like the report of a run."""
    environment = Environment(loader=PackageLoader("cofal", "report"), autoescape=True, undefined=StrictUndefined)
    assert environment.loader is not None
    return environment.from_string(TEMPLATE).render(
        style=environment.loader.get_source(environment, "page.css")[0],
        finding=finding(study),
        paragraphs=map(_bound, [price(study), *explanation(study)]),
        tables={
            "levels": (HEADINGS, [cells(row) for row in study.rows]),
            "regions": (REGION_HEADINGS, region_rows(study)),
        },
        remarks=map(_bound, remarks(study)),
        regions_text=regions_text(study),
        plot=base64.b64encode(plot).decode(),
        grid=base64.b64encode(grid).decode(),
        command=command,
        facts=study.facts,
    )
