"""`cofal select`: picks from embedding files, written as a CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cofal.cli import app
from cofal.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from cofal.selection.pool import Selection


@app.command("select")
def select_command(
    client: Annotated[
        list[Path],
        typer.Option(help="Embeddings of a client: .npy (rows, dimensions), or .npz with one array. Repeat."),
    ],
    out: Annotated[Path, typer.Option(help="CSV to write: rank,client,index.")],
    budget: Annotated[
        list[int] | None, typer.Option(help="Labels that client can afford, in the order of --client. Repeat.")
    ] = None,
    total: Annotated[
        int | None, typer.Option(help="Labels in all, divided by what each client's rows can add; instead of --budget.")
    ] = None,
    method: Annotated[str, typer.Option(help="probcover, typiclust, maxherding or random.")] = "maxherding",
    coordination: Annotated[
        str,
        typer.Option(
            help="central: over all clients together; aggregate: the same from centroids, counts and distances only; "
            "per-client: each alone; auto: measured, then decided."
        ),
    ] = "central",
    sharing: Annotated[
        str, typer.Option(help="What clients show under auto: embeddings or aggregates.")
    ] = "embeddings",
    labeled: Annotated[
        list[Path] | None,
        typer.Option(help="Positions already labelled, one a line, in the order of --client. Repeat."),
    ] = None,
    delta: Annotated[
        str | None, typer.Option(help="Radius of probcover between unit rows, or auto to estimate it.")
    ] = None,
    lengthscale: Annotated[float | None, typer.Option(help="Lengthscale of maxherding's kernel.")] = None,
    kernel: Annotated[str | None, typer.Option(help="Kernel of maxherding: gaussian, laplace, cauchy, tophat.")] = None,
    min_region: Annotated[
        int | None, typer.Option(help="aggregate: the fewest rows whose centroid or count leaves a client (5).")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="aggregate, probcover: batched, or the paper's, three round trips a label.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="aggregate, typiclust: k-means round trips at most (15).")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Expected displacement of noise on every embedding.")] = 0.0,
    mechanism: Annotated[
        str, typer.Option(help="That noise: tangent (the paper's) or vmf (with a formal guarantee).")
    ] = "tangent",
    seed: Annotated[int, typer.Option(help="Seed of all that is random.")] = 0,
    approx: Annotated[
        bool, typer.Option("--approx", help="For millions of rows: pick from a sample and measure what that loses.")
    ] = False,
    memory_limit: Annotated[
        float | None, typer.Option(help="GiB that probcover and maxherding may use; never changes the picks.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where matrix products run: cpu or cuda.")] = "cpu",
    json_: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Pick the rows each client should label.

    In the CSV, client is the place of its file among --client (0 for the first), index the row in that file (from 0).

    Example: cofal select --client a.npy --client b.npy --budget 10 --budget 10 --out picks.csv
    """
    import math
    import time

    from cofal.files import check_writable
    from cofal.selection import select
    from cofal.selection.api import check_known
    from cofal.selection.kernels import NAMES

    params: dict[str, Any] = {}
    if delta is not None:
        params["delta"] = _radius(delta)
    if lengthscale is not None:
        params["lengthscale"] = lengthscale
    if kernel is not None:
        check_known("kernel", kernel, NAMES)
        params["kernel"] = kernel
    for name, value in {"min_region": min_region, "schedule": schedule, "iterations": iterations}.items():
        if value is not None:
            if coordination != "aggregate":
                raise UserError(
                    f"--{name.replace('_', '-')} is for --coordination aggregate; leave it out, or use that"
                )
            params[name] = value
    if memory_limit is not None:
        if not 0 < memory_limit < math.inf:
            raise UserError(f"--memory-limit {memory_limit:g} is no amount of memory; give GiB above 0, such as 2")
        params["memory_limit"] = int(memory_limit * 2**30)
    if approx:
        params["approx"] = True
    if (total is None) == (not budget):
        raise UserError("give --budget for each client, or one --total for all of them")
    check_writable(out)
    _check_kept(out, [*client, *(labeled or [])])
    embeddings = [embeddings_of(path) for path in client]
    positions = None if not labeled else [_positions(path) for path in labeled]
    started = time.monotonic()
    try:
        picks = select(
            embeddings,
            total if total is not None else budget or [],
            method,
            coordination,
            positions,
            seed=seed,
            epsilon=epsilon,
            mechanism=mechanism,
            sharing=sharing,
            device=device,
            **params,
        )
    except UserError as error:
        raise UserError(_with_files(str(error), client)) from None
    seconds = time.monotonic() - started
    _write(out, picks)
    noise = _noise(method, params, epsilon, mechanism, embeddings[0].shape[1]) if epsilon else {}
    _summary(picks, client, [len(array) for array in embeddings], method, coordination, noise, seconds, out, json_)


def _check_kept(out: Path, files: list[Path]) -> None:
    """The picks are not written over what they are chosen from."""
    for file in files:
        if out.exists() and file.exists() and out.samefile(file):
            raise UserError(f"--out {out} is one of the files that are read, and would be lost; name another")


def _with_files(message: str, files: list[Path]) -> str:
    """Beside the number of a client the file that was given for it."""
    import re

    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"{found[0]} ({files[number]})" if number < len(files) else found[0]

    return re.sub(r"\bclient (\d+)\b", named, message)


def _noise(method: str, params: dict[str, Any], epsilon: float, mechanism: str, d: int) -> dict[str, Any]:
    """What was done to the embeddings, and how the method's reach was fitted to it."""
    import inspect

    from cofal.privacy.perturbation import kept_cosine
    from cofal.selection.api import SELECTORS
    from cofal.selection.maxherding import fitted_lengthscale
    from cofal.selection.probcover import noised_radius

    kept = kept_cosine(epsilon, d, mechanism)
    used = {name: each.default for name, each in inspect.signature(SELECTORS[method]).parameters.items()} | params
    told: dict[str, Any] = {"epsilon": epsilon, "mechanism": mechanism}
    if method == "maxherding":
        told["lengthscale"] = fitted_lengthscale(used["kernel"], used["lengthscale"], kept)
    if method == "probcover" and used["delta"] != "auto":
        told["delta"] = noised_radius(used["delta"], kept)
    return told


def _radius(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--delta {text} is neither a number nor 'auto'") from None


def embeddings_of(path: Path) -> np.ndarray:
    """The array of an .npy file, mapped rather than read, or the only array of an .npz file."""
    import zipfile

    import numpy as np

    if path.is_dir():
        raise UserError(f"{path} is a folder; give an .npy file")
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if len(loaded.files) != 1:
                names = ", ".join(loaded.files) or "none"
                raise UserError(f"{path} holds {len(loaded.files)} arrays ({names}); save the embeddings alone as .npy")
            return np.asarray(loaded[loaded.files[0]])
    except OSError as error:
        told = error.strerror or "it is damaged or not an .npy file"
        raise UserError(f"cannot read {path}: {told}; give an .npy file written with numpy.save") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        with path.open("rb") as file:
            saved = file.read(6) == b"\x93NUMPY"
        if saved and "bject" in str(error):  # numpy says "Object arrays" or, of a mapped file, "Python objects"
            raise UserError(f"{path} holds Python objects, not numbers; save a float array with numpy.save") from error
        raise UserError(f"{path} is not a whole .npy file; write it with numpy.save") from error


def _positions(path: Path) -> np.ndarray:
    """The whole numbers of a text file, one a line; empty lines are skipped."""
    import numpy as np

    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a text file of positions, one a line") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text file; give labelled positions, one a line") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(int(line))
            except ValueError:
                raise UserError(f"line {number} of {path} is {line.strip()!r}; give one position a line") from None
    return np.array(found, dtype=object)  # whole numbers of any size: what is too large is told with the others


def _write(out: Path, picks: Selection) -> None:
    import csv

    from cofal.files import atomic

    with atomic(out) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["rank", "client", "index"])
        writer.writerows([rank, client, position] for rank, (client, position) in enumerate(picks.order))


def _summary(
    picks: Selection,
    files: list[Path],
    sizes: list[int],
    method: str,
    coordination: str,
    noise: dict[str, Any],
    seconds: float,
    out: Path,
    as_json: bool,
) -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    counts = [len(rows) for rows in picks.indices]
    if as_json:
        report = {
            "method": method,
            "coordination": coordination,
            "picks": [{"client": c, "index": i} for c, i in picks.order],
            "clients": [{"file": str(f), "rows": n, "picked": k} for f, n, k in zip(files, sizes, counts)],
            "noise": noise or None,
            "seconds": round(seconds, 3),
            "coverage_loss": picks.coverage_loss,
            "rounds": picks.rounds,
            "bytes_up": picks.bytes_up,
            "auto": None if picks.decision is None else picks.decision.as_dict(),
            "out": str(out),
        }
        typer.echo(json.dumps(report))
        return
    table = Table(title=f"{method}, {coordination}")
    for heading in ("client", "file"):
        table.add_column(heading)
    for heading in ("rows", "picked"):
        table.add_column(heading, justify="right")
    for number, (file, rows, count) in enumerate(zip(files, sizes, counts)):
        table.add_row(str(number), str(file), f"{rows:,}", f"{count:,}")
    Console().print(table)
    if noise:
        fitted = [f"{name} {noise[name]:.4g}, fitted to it" for name in ("lengthscale", "delta") if name in noise]
        told = [f"noise {noise['mechanism']} with epsilon {noise['epsilon']:g} on every embedding", *fitted]
        typer.echo("; ".join(told))
    if picks.decision is not None:
        typer.echo(picks.decision.in_words())
    if picks.coverage_loss is not None:
        typer.echo(f"approximate: {picks.coverage_loss:.1%} less coverage than exact picks on a check sample")
    if picks.rounds:
        typer.echo(f"{picks.rounds} round trips, {picks.bytes_up / len(files) / 1e6:.2f} MB sent per client on average")
    typer.echo(f"{sum(counts)} picks in {seconds:.1f} s, written to {out}")
