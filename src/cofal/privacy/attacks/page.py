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
    lines = ["# What an attacker gets out of what leaves a client", "", f"`{command}`", ""]
    lines += [*(f"{paragraph}\n" for paragraph in explanation(study)), ""]
    lines += ["| " + " | ".join(HEADINGS) + " |", "| --- |" + " ---: |" * (len(HEADINGS) - 1)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in study.rows]
    lines += ["", *(f"* {note}" for note in remarks(study))]
    lines += ["", "## Membership from one release of regions", "", REGIONS_TEXT, ""]
    lines += ["| " + " | ".join(REGION_HEADINGS) + " |", "|" + " ---: |" * len(REGION_HEADINGS)]
    lines += ["| " + " | ".join(region_cells(each)) + " |" for each in study.regions]
    return "\n".join(lines) + "\n"


REGIONS_TEXT = (
    "Every client tells the means and counts of regions of its samples, once, each region holding at least min_region "
    "of them. The attacker looks at distances to the means, or at how far a mean is drawn towards a candidate."
)
REGION_HEADINGS = [
    "regions asked for",
    "min_region",
    "regions told",
    "smallest",
    "AUC by distance",
    "AUC by likelihood",
]


def region_cells(each: dict[str, float]) -> list[str]:
    counts = [f"{each[name]:.0f}" for name in ("asked", "min_region", "regions", "smallest")]
    return [*counts, f"{each['distance']:.3f}", f"{each['likelihood']:.3f}"]


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
    found.append(
        "kappa is vmf's proven bound: odds between two possible images at distance r shift by at most exp(kappa r). "
        "A dash means that nothing is proven."
    )
    found.append(
        "An attacker with more images or more computing time can do better than this one: read leaks as lower bounds."
    )
    return found


def finding(study: Study) -> str:
    """The headline: what the usual noise level changes."""
    raw = next((row for row in study.rows if row.level.kind == "noise" and row.level.epsilon == 0), None)
    noised = [row for row in study.rows if row.level.kind == "noise" and row.level.epsilon > 0]
    if raw is None or not noised or raw.reidentified is None:
        return "What an attacker gets out of what leaves a client"
    usual = min(noised, key=lambda row: abs(row.level.epsilon - 0.6))
    assert usual.reidentified is not None
    return (
        f"Noise of {usual.level.epsilon:g}: an attacker traces {100 * usual.reidentified:.0f} % of the embeddings to "
        f"their image instead of {100 * raw.reidentified:.0f} %, and accuracy goes from {100 * raw.accuracy:.1f} % to "
        f"{100 * usual.accuracy:.1f} %"
    )


def html(study: Study, command: str, plot: bytes, grid: bytes) -> str:
    """One page that needs no other file; it looks like the report of a run."""
    environment = Environment(loader=PackageLoader("cofal", "report"), autoescape=True, undefined=StrictUndefined)
    assert environment.loader is not None
    return environment.from_string(TEMPLATE).render(
        style=environment.loader.get_source(environment, "page.css")[0],
        finding=finding(study),
        paragraphs=explanation(study),
        tables={
            "levels": (HEADINGS, [cells(row) for row in study.rows]),
            "regions": (REGION_HEADINGS, [region_cells(each) for each in study.regions]),
        },
        remarks=remarks(study),
        regions_text=REGIONS_TEXT,
        plot=base64.b64encode(plot).decode(),
        grid=base64.b64encode(grid).decode(),
        command=command,
        facts=study.facts,
    )
