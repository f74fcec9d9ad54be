"""`cofal run` and `cofal demo`: the whole pipeline on the embedded engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cofal.cli import app

if TYPE_CHECKING:
    from cofal.config import Config
    from cofal.rundir import RunDir


@app.command("run")
def run_command(
    config: Annotated[
        str, typer.Argument(help="A TOML file, or the name of a preset (see --list).", show_default=False)
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; the same folder again goes on where it stopped. Default: runs/NAME."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one value, e.g. --set clients.count=2."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the presets and stop.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table.")] = False,
) -> None:
    """Run one experiment: federated SimCLR, coordinated selection, federated classifier.

    Killed at any moment, the same command goes on from the last finished round and ends with the same numbers;
    a finished run only prints its results again.

    Example: cofal run cifar10-cpu --set data.path=cifar10 --out runs/cifar10
    """
    from cofal.config import load, presets
    from cofal.errors import UserError

    if list_:
        _print_presets(presets(), json_)
        return
    if not config:
        raise UserError(f"no configuration given; name a TOML file or a preset ({', '.join(presets())})")
    settings = load(config, set_ or [])
    _execute(settings, out or Path("runs") / settings.name, json_)


@app.command("demo")
def demo_command(
    out: Annotated[
        Path, typer.Option(help="Folder of the run; the same folder again goes on where it stopped.")
    ] = Path("demo"),
    json_: Annotated[bool, typer.Option("--json", help="Print the results as JSON instead of a table.")] = False,
) -> None:
    """The whole pipeline in about a minute: scikit-learn's digits, four alike clients, three selectors, a report.

    Shows the paper's finding: alike clients that choose alone ask for the same things; coordinated, they do not.
    """
    from cofal.config import load

    _execute(load("digits"), out, json_)


def _execute(config: Config, out: Path, json_: bool) -> None:
    """Say what will run, run it with bars, print the table, write the report."""
    import json

    from cofal.files import read_json
    from cofal.progress import progress
    from cofal.report.summary import print_results, print_settings

    if not json_:
        print_settings(config, out)
    from cofal.federation.embedded import run_embedded

    with progress(quiet=json_):
        run: RunDir = run_embedded(config, out)
        from cofal.report.page import write_report

        write_report(run)
    results = read_json(run.results)
    if json_:
        print(json.dumps(results))
    else:
        print_results(results)
        print(f"Report: {run.report}")


def _print_presets(found: dict[str, str], json_: bool) -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    if json_:
        print(json.dumps(found))
        return
    table = Table("preset", "what it is", box=None)
    for name, line in found.items():
        table.add_row(name, line)
    Console().print(table)
