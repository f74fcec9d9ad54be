"""`cofal advise`: before anyone labels, how alike the clients are and what coordination is worth to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cofal.cli import app


@app.command("advise")
def advise_command(
    budget: Annotated[
        list[int],
        typer.Option(help="Labels in all; or, repeated in the order of --client, labels of each client."),
    ],
    client: Annotated[
        list[Path] | None,
        typer.Option(help="Embeddings of a client: .npy (rows, dimensions), or .npz with one array. Repeat."),
    ] = None,
    server: Annotated[
        Path | None,
        typer.Option(help="Folder of a running server (cofal server up): ask its sites, who tell aggregates only."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Where to draw how alike the clients are: .png, .svg or .pdf.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all that is random.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
) -> None:
    """Say how alike the clients are, how many labels they would waste by choosing alone, and what to do about it.

    No label is needed. With --server the sites show no image and no embedding, only how many of their images lie in
    each of about as many common cells as there are labels.

    Example: cofal advise --client a.npy --client b.npy --budget 40 --figure alike.png
    Example: cofal advise --server federation --budget 40
    """
    import json

    from cofal.errors import UserError
    from cofal.files import check_writable, write_bytes
    from cofal.report.likeness import check_format, likeness_figure

    if (server is None) == (not client):
        raise UserError("give the clients' embeddings with --client, or the folder of a running server with --server")
    if figure is not None:
        check_format(figure)
        check_writable(figure)
    if server is not None:
        facts = _of_a_deployment(server, budget, json_)
    else:
        facts = _of_embeddings(client or [], budget, seed)
    names = [Path(name).stem for name in facts["clients"]] if client else facts["clients"]
    if figure is not None:
        import numpy as np

        write_bytes(figure, likeness_figure(np.array(facts["overlap_matrix"]), names, figure.suffix.lower()))
    told = facts.pop("told")
    if json_:
        typer.echo(json.dumps({**facts, "figure": None if figure is None else str(figure)}))
        return
    for line in told:
        typer.echo(line)
    if figure is not None:
        typer.echo(f"How alike each two clients are: {figure}")


def _of_embeddings(client: list[Path], budget: list[int], seed: int) -> dict[str, Any]:
    from cofal.cli.select import embeddings_of
    from cofal.evaluation.advice import advise

    embeddings = [embeddings_of(path) for path in client]
    advice = advise(embeddings, budget[0] if len(budget) == 1 else budget, seed=seed)
    told = advice.in_words([path.stem for path in client])
    return {"clients": [str(path) for path in client], **advice.as_dict(), "told": told}


def _of_a_deployment(folder: Path, budget: list[int], quiet: bool) -> dict[str, Any]:
    from cofal.cli.phases import run_now
    from cofal.deploy.server_folder import ServerFolder
    from cofal.errors import UserError
    from cofal.federation.orders import close_order, place_order
    from cofal.federation.phases.advising import advice_file
    from cofal.files import read_json
    from cofal.rundir import RunDir

    if len(budget) != 1 or budget[0] < 1:
        raise UserError(
            f"--budget {' '.join(map(str, budget))}: give one total, 1 or more; config.toml says the shares"
        )
    ServerFolder(folder).settings()  # a folder that is none is told before anything is written there
    run = RunDir(folder)
    place_order(run, "advise", budget=budget[0])
    try:
        run_now(folder, "advise", None, quiet)
    finally:
        close_order(run, "advise")  # it changes nothing at the sites: asked again, it is measured again
    facts: dict[str, Any] = read_json(advice_file(run))
    return facts
