"""`cofal client label` and `cofal client annotator`: the annotators' page of a site, and who may use it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cofal.cli.client import Folder, client

if TYPE_CHECKING:
    from cofal.labeling.web.annotators import Annotators

Name = Annotated[str, typer.Argument(help="Name of the annotator, as it stands beside the labels.")]

annotator = typer.Typer(help="At a site: who may label over the network.", no_args_is_help=True)
client.add_typer(annotator, name="annotator")


@client.command("label")
def label_command(
    folder: Folder,
    host: Annotated[
        str, typer.Option(help="Address to listen at. Any but loopback demands TLS and annotators' tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8710,
    cert: Annotated[Path | None, typer.Option(help="Certificate for TLS, PEM.", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.", show_default=False)] = None,
    overlap: Annotated[
        float | None,
        typer.Option(
            help="Share of the images to ask of two annotators, 0 to 1; kept from then on.", show_default=False
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Folder of the original images, to show them in full size.", show_default=False),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in this machine's browser.")] = False,
) -> None:
    """Serve the page on which people label the images asked of a site. Ctrl-C ends it; every answer is on the disk.

    Example: cofal client label sites/north --images scans --overlap 0.1
    """
    from cofal.labeling.web.serve import Page

    page = Page(folder, host=host, port=port, certificate=cert, private_key=key, overlap=overlap, originals=images)
    print(f"Label at {page.url}", flush=True)
    if open_:
        import webbrowser

        webbrowser.open(page.url)
    with suppress(KeyboardInterrupt):
        page.serve()
    done = page.store.progress()
    print(f"Stopped. Labelled {done.labelled:,} of {done.asked:,}, skipped {done.skipped:,}.")


@annotator.command("add")
def add_command(name: Name, folder: Folder) -> None:
    """Register an annotator and print the token to log in with. It is shown once; again for a name gives a new token.

    Example: cofal client annotator add ana sites/north
    """
    print(_annotators(folder).add(name))


@annotator.command("list")
def list_command(folder: Folder) -> None:
    """List the registered annotators.

    Example: cofal client annotator list sites/north
    """
    for name in _annotators(folder).names():
        print(name)


@annotator.command("remove")
def remove_command(name: Name, folder: Folder) -> None:
    """Remove an annotator: no login any more, and open pages are logged out. The labels stay.

    Example: cofal client annotator remove ana sites/north
    """
    _annotators(folder).remove(name)
    print(f"Removed {name}.")


def _annotators(folder: Path) -> Annotators:
    """Those of the site in `folder`; a folder that is no site names itself."""
    from cofal.federation.site import open_site
    from cofal.labeling.web.annotators import Annotators

    open_site(folder)
    return Annotators(folder)
