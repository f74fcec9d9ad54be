"""A site's own report, for the site alone: the images it was asked, their labels, who gave them, and what left."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.federation.site import Site, open_site
from cofal.files import atomic
from cofal.labeling.reasons import Reasons
from cofal.labeling.records import Query
from cofal.labeling.store import LabelStore
from cofal.privacy.answered import answered
from cofal.privacy.ledger import FILE as LEDGER
from cofal.privacy.ledger import HEAD, read_ledger
from cofal.report.account import phase_title, size
from cofal.report.asked import AMONG, METHODS
from cofal.report.egress import WORDS, ledger_account
from cofal.report.embedding_map import FEWEST_POINTS, MOST_POINTS, SIDE, layout
from cofal.report.facts import READABLE_PICKS, title, track_title
from cofal.report.finding import Tile
from cofal.report.page import fill
from cofal.report.pictures import thumbnail
from cofal.report.sections import balance
from cofal.rundir import versions

# The ledger names the message that a reply answers; the server's report has the phases' own names.
_PHASES = {
    "query.describe": "describe",
    "train encoder": "pretrain",
    "query.embed": "embed",
    "query.aggregate": "select main",
    "query.pick": "select main",
    "query.assign": "assign",
    "query.progress": "progress",
    "train head": "train",
    "train image": "train",
    "evaluate": "evaluate",
}
_MOST_PICTURES = 200
_MOST_PICKS = 300


def write_site_report(folder: Path, out: Path | None = None) -> Path:
    """The report of the site in `folder`, as `report.html` there or as `out`; readable by its owner only."""
    site = open_site(folder)
    if site.store is None:
        raise UserError(f"{folder} is a simulated site; the report of its run shows what it was asked")
    text, place = render_site(site, site.store), out or Path(folder) / "report.html"
    with atomic(place) as temporary, open(temporary, "x", encoding="utf-8", opener=_for_its_owner) as file:
        file.write(text)
    return place


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def render_site(site: Site, store: LabelStore) -> str:
    """The whole page as text."""
    progress, asked, labels = store.progress(), store.queries(), store.labels()
    reasons = _reasons(site, asked)
    known = len(site.settings.known_labels)
    done = f"{progress.labelled:,} of {progress.asked:,} images that were asked are labelled"
    return fill(
        "site.html",
        title=f"Site {site.name}",
        versions={"cofal": versions()["cofal"]},
        headline=done if progress.asked else "Nothing has been asked of this site yet",
        known=known,
        images=len(site.train.ids),
        tiles=_tiles(store),
        selections=_selections(asked),
        pictures=_pictures(site, asked, reasons) if asked else None,
        balance=balance(site.train.classes, {"Labels": Counter(labels.values())}) if labels else None,
        people=[(name, work) for name, work in progress.annotators.items()],
        pairs=store.agreement().pairs,
        map=_map(site, asked, reasons),
        left=_left(site),
    )


def _tiles(store: LabelStore) -> list[Tile]:
    progress, agreement, reasons = store.progress(), store.agreement(), Counter(store.skipped().values())
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    tiles = [Tile(f"{progress.open:,}", "still to be labelled"), Tile(f"{progress.skipped:,}", "skipped", why)]
    if progress.median_seconds is not None:
        tiles.append(Tile(f"{progress.median_seconds:.1f}\u00a0s", "for an answer (median)"))
    if agreement.kappa is not None:
        told = f"on {agreement.images:,} images answered twice, {progress.disputed:,} still in dispute"
        tiles.append(Tile(f"{agreement.kappa:.2f}", "Cohen's kappa", told))
    return tiles


def _selections(asked: list[Query]) -> list[tuple[str, str, int, str, str]]:
    """Of each selection: its number, when, how many images, how they were chosen, and what that means."""
    found = []
    for number in dict.fromkeys(query.selection for query in asked):
        mine = [query for query in asked if query.selection == number]
        method, kind = (str(mine[0].why.get(key, "")) for key in ("method", "coordination"))
        how = track_title(method, kind) if method else "not told"
        meaning = f"{title(method)} {METHODS[method]}" if method in METHODS else ""
        if meaning and kind in AMONG and method != "random":
            meaning += f": {AMONG[kind]}"
        found.append((number, mine[0].asked_at[:16].replace("T", " "), len(mine), how, meaning))
    return found


def _reasons(site: Site, asked: list[Query]) -> Reasons | None:
    """Regions in the embedding by which the latest questions were chosen, if the site has it."""
    digest = next((str(query.why["digest"]) for query in reversed(asked) if query.why.get("digest")), "")
    return Reasons(site.train.ids, site.embeddings(digest)) if digest and site.has_embeddings(digest) else None


def _answer(query: Query) -> str:
    told = {"labelled": query.label, "skipped": f"skipped: {query.reason}", "disputed": "in dispute"}
    return told.get(query.state) or "open"


def _tip(query: Query, region: int | None) -> str:
    stands = f"\nstands for {region:,} images" if region else ""
    return f"{query.id}\n{_answer(query)}\nasked as number {query.rank + 1}{stands}"


def _pictures(site: Site, asked: list[Query], reasons: Reasons | None) -> dict[str, Any]:
    ids, shown = [query.id for query in asked], []
    for query in asked[:_MOST_PICTURES]:
        region = reasons.of(query, ids, {}).region if reasons else None
        shown.append(
            {
                "source": thumbnail(site.train.images[site.positions([query.id])[0]]),
                "tip": _tip(query, region).replace("\n", " · "),
                "text": _answer(query),
                "state": query.state,
                "rank": query.rank + 1,
            }
        )
    return {"shown": shown, "more": len(asked) - len(shown)}


def _map(site: Site, asked: list[Query], reasons: Reasons | None) -> dict[str, Any] | None:
    """All asked images and others up to MOST_POINTS, in the shape that the figure of a run's map has."""
    if reasons is None or len(site.train.ids) < FEWEST_POINTS:
        return None
    rows = site.positions([query.id for query in asked[:_MOST_PICKS]])
    others = np.setdiff1d(np.arange(len(site.train.ids)), rows)
    step = max(1, -(-len(others) // max(1, MOST_POINTS - len(rows))))
    chosen = np.concatenate([rows, others[::step]])
    points = np.asarray(reasons.rows[chosen], dtype=np.float32)
    if np.allclose(points, points[0]):
        return None
    places = layout(points, 0).tolist()
    spots = {site.train.ids[row]: at for row, at in zip(chosen, places, strict=True)}
    picks = [
        {
            "x": spots[query.id][0],
            "y": spots[query.id][1],
            "rank": query.rank + 1,
            "client": 0,
            "redundant": [],
            "tip": _tip(query, None),
        }
        for query in asked[:_MOST_PICKS]
    ]
    return {
        "side": SIDE,
        "clients": [site.name],
        "layers": [" ".join(f"M{x} {y}h0" for x, y in spots.values())],
        "points": [[[x, y, sample] for sample, (x, y) in spots.items()]],
        "centroids": False,
        "panel": {"kind": "site", "word": "", "tracks": [{"method": "asked", "name": "Asked", "picks": picks}]},
        "shown": min(len(asked), READABLE_PICKS),
        "budgets": sorted({min(len(asked), READABLE_PICKS), len(picks)}),
    }


def _left(site: Site) -> dict[str, Any] | None:
    """The ledger in brief; None as long as nothing was sent."""
    questions = answered(site.folder)
    if not questions and not (site.folder / LEDGER).exists() and not (site.folder / HEAD).exists():
        return None
    reading = read_ledger(site.folder / LEDGER, answered=questions)
    account = ledger_account(reading)
    rows = [
        (
            phase_title(_PHASES.get(row["phase"], row["phase"])),
            row["kind"],
            WORDS.get(row["kind"], row["kind"]),
            row["messages"],
            size(row["bytes"]),
        )
        for row in account["rows"]
    ]
    total = size(account["bytes"])
    return {
        "rows": rows,
        "total": total,
        **{key: account[key] for key in ("messages", "refused", "lines", "head", "broken", "doubt")},
    }
