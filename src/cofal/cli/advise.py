"""`cofal advise`: before anyone labels, how alike the clients are and what coordination is worth to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cofal.cli import app


@app.command("advise")
def advise_command(
    client: Annotated[
        list[Path],
        typer.Option(help="Embeddings of a client: .npy (rows, dimensions), or .npz with one array. Repeat."),
    ],
    budget: Annotated[
        list[int],
        typer.Option(help="Labels in all; or, repeated in the order of --client, labels of each client."),
    ],
    figure: Annotated[
        Path | None, typer.Option(help="Where to draw how alike the clients are: .png, .svg or .pdf.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all that is random.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
) -> None:
    """Say how alike the clients are, how many labels they would waste by choosing alone, and what to do about it.

    Only the numbers of each client's images in common cells of the embedding are used, which clients can tell without
    showing an image or an embedding.

    Example: cofal advise --client a.npy --client b.npy --budget 40 --figure alike.png
    """
    import json

    from cofal.cli.select import check_writable, embeddings_of
    from cofal.evaluation.advice import advise
    from cofal.files import write_bytes
    from cofal.report.likeness import check_format, likeness_figure

    if figure is not None:
        check_format(figure)
        check_writable(figure)
    embeddings = [embeddings_of(path) for path in client]
    advice = advise(embeddings, budget[0] if len(budget) == 1 else budget, seed=seed)
    if figure is not None:
        names = [path.stem for path in client]
        write_bytes(figure, likeness_figure(advice.overlap.matrix, names, figure.suffix.lower()))
    if json_:
        files = [str(path) for path in client]
        typer.echo(
            json.dumps({"clients": files, **advice.as_dict(), "figure": None if figure is None else str(figure)})
        )
        return
    for line in advice.in_words([path.stem for path in client]):
        typer.echo(line)
    if figure is not None:
        typer.echo(f"How alike each two clients are: {figure}")
