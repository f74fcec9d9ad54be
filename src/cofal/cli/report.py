"""`cofal report`: a finished run, a deployment's server or a site as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cofal.cli import app


@app.command("report")
def report_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a finished run, of a server, or of a site.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file to write. Default: report.html in the folder.")
    ] = None,
) -> None:
    """Write a report: one HTML file that opens anywhere, without a network.

    Of a run or a deployment's server, what each label bought and what left the sites; of a site, for its owner alone,
    the images it was asked with their labels.

    Example: cofal report demo --out report.html
    """
    from cofal.federation.site_settings import SETTINGS
    from cofal.files import check_writable
    from cofal.report.page import write_report
    from cofal.report.site_page import write_site_report
    from cofal.rundir import RunDir

    if out is not None:
        check_writable(out)
    if (folder / SETTINGS).exists():
        print(f"Report: {write_site_report(folder, out)}")
        return
    run = RunDir(folder)
    write_report(run, out)
    print(f"Report: {out or run.report}")
