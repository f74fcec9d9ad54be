"""`cofal report`: a finished run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cofal.cli import app


@app.command("report")
def report_command(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file to write. Default: report.html in the run's folder.")
    ] = None,
) -> None:
    """Write the report of a finished run: one HTML file that opens anywhere, without a network.

    Example: cofal report demo --out report.html
    """
    from cofal.report.page import write_report
    from cofal.rundir import RunDir

    run = RunDir(run_dir)
    write_report(run, out)
    print(f"Report: {out or run.report}")
