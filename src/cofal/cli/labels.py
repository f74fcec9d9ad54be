"""`cofal client status|export|import|backup`: a site's questions and labels on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cofal.cli.client import Folder, client

if TYPE_CHECKING:
    from cofal.labeling.merging import Outcome
    from cofal.labeling.store import LabelStore

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_SHOWN = 20  # entries of a list that the terminal shows


@client.command("status")
def status_command(folder: Folder, json_: Json = False) -> None:
    """Show how far the labelling at a site is: what was asked, labelled, skipped, who did it, what is left.

    Example: cofal client status sites/north
    """
    from dataclasses import asdict

    store = _store(folder)
    progress, agreement, reasons = store.progress(), store.agreement(), list(store.skipped().values())
    facts: dict[str, Any] = {
        "site": _name(folder),
        **asdict(progress),
        "reasons": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
        "overlap": store.overlap,
        "agreement": asdict(agreement),
    }
    _tell(json_, facts, _print_status)


@client.command("export")
def export_command(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="File to write.", show_default=False)],
    format_: Annotated[str, typer.Option("--format", help="label-studio, csv or coco.", show_default=False)],
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is labelled or skipped, with its answer.")
    ] = False,
    document_root: Annotated[
        Path | None,
        typer.Option(
            help="Folder from which Label Studio serves local files.  \\[default: the folder of --out]",
            show_default=False,
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Write what is to be labelled at a site for another tool: ids, and for tools that show images PNG files.

    Images are written beside the file, on this machine only.

    Example: cofal client export sites/north --format label-studio --out north/tasks.json
    """
    from cofal.federation.site import open_site
    from cofal.files import check_writable
    from cofal.labeling.exchange.transfer import export_questions

    check_writable(out)
    store = _store(folder)
    images = open_site(folder).train
    count, written = export_questions(store, images, out, format_, everything=everything, document_root=document_root)
    facts = {"questions": count, "written": [str(path) for path in written]}
    root = (document_root or out.parent).absolute() if format_ == "label-studio" else None
    _tell(json_, facts, lambda _: _print_export(folder, facts, root, everything))


@client.command("import")
def import_command(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What the other tool exported.", show_default=False)],
    format_: Annotated[
        str, typer.Option("--format", help="label-studio, csv or coco.  \\[default: found from the file]")
    ] = "",
    annotator: Annotated[str, typer.Option(help="Whose labels these are.  \\[default: whom the file names]")] = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Where the file differs from the store, the file is right.")
    ] = False,
    json_: Json = False,
) -> None:
    """Bring labels from another tool into a site's store. Doing so twice changes nothing.

    What differs from the store is listed and left as it is, unless --overwrite says so; ids that were not asked, and
    classes that the site does not have, are listed and left out. The audit trail names the file of every label.

    Example: cofal client import sites/north project-1.json --annotator "Dr. Ito"
    """
    from dataclasses import asdict

    from cofal.labeling.exchange.transfer import import_answers

    outcome = import_answers(_store(folder), file, format_, annotator=annotator, overwrite=overwrite)
    _tell(json_, asdict(outcome), lambda _: _print_outcome(outcome))


@client.command("backup")
def backup_command(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="File to write; it must not exist.", show_default=False)],
) -> None:
    """Copy a site's label store to one file, while people go on labelling. Put it back as DIR/labels.sqlite.

    Example: cofal client backup sites/north --out north-labels.sqlite
    """
    _store(folder).backup(out)
    print(f"{out}: {out.stat().st_size:,} bytes")


def _tell(json_: bool, facts: dict[str, Any], show: Callable[[dict[str, Any]], None]) -> None:
    """The facts as JSON for a program, or as `show` puts them for a person."""
    import json

    if json_:
        print(json.dumps(facts))
    else:
        show(facts)


def _store(folder: Path) -> LabelStore:
    """The store of a site that people label; a simulated one has none."""
    from cofal.errors import UserError
    from cofal.federation.site_settings import read_settings
    from cofal.labeling.store import LabelStore

    if read_settings(folder).oracle:
        raise UserError(f"{folder} is a simulated site: its data set answers every question, so nobody labels there")
    return LabelStore.open(folder)


def _name(folder: Path) -> str:
    from cofal.federation.site_settings import read_settings

    return read_settings(folder).name


def _print_status(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(
        f"Labels at {escape(facts['site'])}: {facts['labelled']:,} of {facts['asked']:,} asked", highlight=False
    )
    left = f", about {_minutes(facts['seconds_left'])} of work" if facts["open"] and facts["seconds_left"] else ""
    console.print(f"  open      {facts['open']:,}{left}", highlight=False)
    why = ", ".join(f"{count:,} {reason}" for reason, count in facts["reasons"].items())
    console.print(f"  skipped   {facts['skipped']:,}" + (f" ({why})" if why else ""), highlight=False)
    if facts["disputed"]:
        console.print(f"  disputed  {facts['disputed']:,}: settle them on the page", highlight=False)
    if facts["second_opinions"]:
        console.print(f"  {facts['second_opinions']:,} labelled ones wait for a second opinion", highlight=False)
    if facts["annotators"]:
        table = Table()
        for title, side in (("annotator", "left"), ("labelled", "right"), ("skipped", "right"), ("median s", "right")):
            table.add_column(title, justify=side)  # type: ignore[arg-type]
        for name, work in facts["annotators"].items():
            seconds = "" if work["median_seconds"] is None else f"{work['median_seconds']:.1f}"
            table.add_row(escape(name), f"{work['labelled']:,}", f"{work['skipped']:,}", seconds)
        console.print(table)
    for pair in facts["agreement"]["pairs"]:
        kappa = "not defined (one class only)" if pair["kappa"] is None else f"{pair['kappa']:.2f}"
        who = f"{pair['first']} and {pair['second']} agree on {pair['agreed']} of {pair['images']}"
        console.print(f"{who}: kappa {kappa}", markup=False, highlight=False)


def _print_export(folder: Path, facts: dict[str, Any], root: Path | None, everything: bool) -> None:
    """`root`: the folder from which Label Studio shall serve the images, if the export is for it."""
    print(f"{facts['questions']:,} {'questions' if everything else 'questions to label'}")
    for path in facts["written"]:
        print(f"  {path}")
    if root is not None:
        print(f"Label Studio: LOCAL_FILES_SERVING_ENABLED=true LOCAL_FILES_DOCUMENT_ROOT={root} label-studio start")
        print(f"The four steps there are in docs/labeling.md; then: cofal client import {folder} EXPORT.json")


def _print_outcome(outcome: Outcome) -> None:
    overwritten = f", {outcome.overwritten:,} overwritten" if outcome.overwritten else ""
    print(f"{outcome.added:,} added, {outcome.unchanged:,} there already{overwritten}")
    disputed = [each for each in outcome.conflicts if each.disputed]
    refused = [each for each in outcome.conflicts if not each.disputed]
    _print_list(
        "differ from the store and were left out (--overwrite takes them)",
        (f"{each.sample!r}: has {each.has!r}, file says {each.given!r}" for each in refused),
    )
    _print_list(
        "contradict another annotator; both are kept, settle them on the page",
        (f"{each.sample!r}: has {each.has!r}, file says {each.given!r}" for each in disputed),
    )
    _print_list("ids were not asked at this site", map(repr, outcome.unknown_ids))
    _print_list(
        "labels are no class of this site", (f"{sample!r}: {label!r}" for sample, label in outcome.unknown_classes)
    )
    _print_list("entries say nothing clear", outcome.unreadable)


def _print_list(title: str, entries: Iterable[str]) -> None:
    found = list(entries)
    if found:
        print(f"{len(found):,} {title}:")
        for entry in found[:_SHOWN]:
            print(f"  {entry}")
        if len(found) > _SHOWN:
            print(f"  and {len(found) - _SHOWN:,} more (--json lists all)")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
