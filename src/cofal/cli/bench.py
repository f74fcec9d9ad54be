"""`cofal bench`: measurements on this machine, written as tables and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cofal.cli import app

bench = typer.Typer(help="Measure cofal on this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.command("select")
def select_command(
    out: Annotated[Path, typer.Option(help="Folder for the table (Markdown, JSON) and the plots.")] = Path("bench"),
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="COFAL_BENCH_DATA",
            help="Embeddings: an .npy, or an .npz with x_train (and y_train, x_test, y_test). Default: synthetic.",
        ),
    ] = None,
    sizes: Annotated[str, typer.Option(help="Numbers of samples, e.g. 5000,10000.")] = "",
    quick: Annotated[bool, typer.Option(help="Two small sizes and one budget: about a minute.")] = False,
    peers: Annotated[bool, typer.Option(help="Also run scikit-activeml and the plain reference loops.")] = True,
    million: Annotated[bool, typer.Option(help="Also pick 1,000 of a million samples in approximate mode.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")] = False,
) -> None:
    """Time and peak memory of every selector against one matrix product over all pairs, and against its peers.

    Example: cofal bench select --data embeddings.npz --sizes 5000,10000 --out bench
    """
    import json

    from cofal.bench.report import print_figures
    from cofal.bench.selecting import bench_select
    from cofal.files import check_writable

    check_writable(out / "select.md")
    figures = bench_select(out, data, quick=quick, sizes=_numbers(sizes), peers=peers, million=million)
    if json_:
        typer.echo(json.dumps(figures))
    else:
        print_figures(figures)
        typer.echo(f"written to {out}: select.md, select.json, select.png, select.svg")


@bench.command("radius")
def radius_command(
    out: Annotated[Path, typer.Option(help="Folder for the table (Markdown, JSON).")] = Path("bench"),
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="COFAL_BENCH_DATA", help="An .npz with x_train, y_train, x_test, y_test. Default: none, digits only."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Digits, two seeds.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")] = False,
) -> None:
    """How far ProbCover with delta="auto" is from the best radius in hindsight: accuracy over budgets 10 to 100."""
    import json

    from cofal.bench.hindsight import bench_radius
    from cofal.bench.report import print_figures
    from cofal.files import check_writable

    check_writable(out / "radius.md")
    figures = bench_radius(out, data, quick=quick)
    if json_:
        typer.echo(json.dumps(figures))
    else:
        print_figures(figures)
        typer.echo(f"written to {out}: radius.md, radius.json")


def _numbers(text: str) -> list[int] | None:
    from cofal.errors import UserError

    try:
        numbers = [int(part.replace("_", "")) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UserError(f"--sizes {text!r} is not a list of whole numbers; write e.g. --sizes 5000,10000") from error
    if any(number < 200 for number in numbers):
        raise UserError(f"--sizes {text!r} holds a size under 200; a hundred picks need more samples")
    return numbers or None
