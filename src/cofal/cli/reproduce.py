"""`cofal reproduce`: the paper's tables, figures and claims, made again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cofal.cli import app

if TYPE_CHECKING:
    from cofal.reproduce.claims.checks import Verdict


@app.command("reproduce")
def reproduce_command(
    name: Annotated[
        str, typer.Argument(help="A table or figure (see --list), all of them, or encoders.", show_default=False)
    ] = "",
    scale: Annotated[
        str, typer.Option(help="smoke: digits, seconds; cpu: real images, two cores; paper: the full set-up, a GPU.")
    ] = "smoke",
    data: Annotated[Path | None, typer.Option(help="Folder that holds the image sets; smoke needs none.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for pages and records. Default: results for cpu, else runs/reproduce/results."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 2,
    methods: Annotated[
        list[str] | None, typer.Option(help="A selector of yours to put into the tables, as module:Name. Repeat.")
    ] = None,
    encoders: Annotated[
        Path | None, typer.Option(help="Folder of trained encoders. Default: runs/reproduce/SCALE/encoders.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Only this image set: of a page, or of the encoders. Repeat.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where encoders are trained: cpu or cuda. Default: the scale's.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the names and stop.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print names or verdicts as JSON.")] = False,
) -> None:
    """Make a table or figure of the paper again: ours beside the paper's numbers, with its claim checked.

    A finished cell of the grid is kept as a record and never computed twice; killed at any moment, the same command
    goes on. `encoders` trains what the scale's image sets need (cpu: about an hour each), once.

    Example: cofal reproduce fig-alpha --scale smoke
    """
    from cofal.errors import UserError
    from cofal.federation.embedded import default_cache
    from cofal.files import check_writable
    from cofal.progress import progress
    from cofal.reproduce.encoders import EncoderFolder
    from cofal.reproduce.grid import experiment_names, load_experiment
    from cofal.reproduce.scales import load_scale

    if list_:
        _print_names({each: load_experiment(each).title for each in experiment_names()}, json_)
        return
    if not name:
        raise UserError(f"no name given; choose one of {', '.join(experiment_names())}, all or encoders")
    plan = load_scale(scale)
    if device:
        plan = plan.model_copy(update={"device": device})
    folder = EncoderFolder(encoders or Path("runs") / "reproduce" / scale / "encoders", plan)
    if name == "encoders":
        from cofal.reproduce.training import train_encoders

        with progress(quiet=json_):
            facts = train_encoders(folder, data, default_cache(), jobs, sets, tell=_tell)
        if json_:
            _print_json(facts)
        return
    names = experiment_names() if name == "all" else [load_experiment(name).name]
    from cofal.reproduce.making import make
    from cofal.reproduce.records import Records
    from cofal.reproduce.running import Workshop, own_selectors
    from cofal.reproduce.spaces import Spaces

    out = out or (Path("results") if scale == "cpu" else Path("runs") / "reproduce" / "results")
    check_writable(out / "README.md")
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data} is not a folder; name the one that holds the image sets")
    extra = own_selectors(methods or [])
    here = out / scale
    with progress(quiet=json_):
        if scale == "smoke":  # seconds: part of the command itself
            from cofal.reproduce.training import train_encoders, trained_sets

            train_encoders(folder, data, default_cache(), jobs, trained_sets(names, scale, plan), tell=_tell)
        spaces = Spaces(plan, folder, data, default_cache(), here / "sets.json")
        found = make(names, Workshop(scale, spaces, Records(here / "records")), out, jobs, extra, _tell, sets or [])
    if json_:
        _print_json({claim: verdict.word for claim, verdict in found.items()})
    else:
        _print_verdicts(found, out)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value))


def _print_names(names: dict[str, str], json_: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    if json_:
        _print_json(names)
        return
    table = Table("name", "what it shows", box=None)
    for name, title in names.items():
        table.add_row(name, title)
    Console().print(table)


def _print_verdicts(found: dict[str, Verdict], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    if found:
        table = Table("", "claim", "here")
        for verdict in sorted(found.values(), key=lambda each: each.claim.number):
            table.add_row(str(verdict.claim.number), verdict.claim.text, verdict.word)
        Console().print(table)
    typer.echo(f"Index: {out / 'README.md'}")
