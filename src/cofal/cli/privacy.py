"""`cofal privacy`: what an attacker gets out of what leaves a client, and what a site has spent of its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cofal.cli import app

privacy = typer.Typer(
    help="How well what leaves a client is protected: measured, and accounted for.", no_args_is_help=True
)
app.add_typer(privacy, name="privacy")


@privacy.command("attack")
def attack_command(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a finished run of this machine.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder to write to. Default: privacy in the run's folder.")] = None,
    epsilons: Annotated[str, typer.Option(help="Levels of noise to attack.")] = "0,0.1,0.3,0.6,1",
    method: Annotated[
        str, typer.Option(help="Selector: probcover, typiclust or maxherding, central and from aggregates.")
    ] = "maxherding",
    min_region: Annotated[
        int | None, typer.Option(min=1, help="Fewest samples behind anything an aggregate tells. Default: the run's.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of the attacker's decoder.")] = 600,
    most: Annotated[int, typer.Option(min=200, help="Images of all sites that take part; enough is enough.")] = 8000,
    seed: Annotated[int, typer.Option(help="Seed of all that is random.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")] = False,
) -> None:
    """Attack what leaves the clients of a run: raw and noised embeddings, aggregates, nothing.

    An attacker with the encoder and images of its own matches embeddings to images, tells who was in the data, and
    rebuilds pictures. Writes attack.html (one page to read), attack.md, attack.json, leakage.png and pictures.png.

    Example: cofal privacy attack demo --out attacks
    """
    import json
    import shlex
    import sys

    from rich.console import Console
    from rich.table import Table

    from cofal.files import check_writable
    from cofal.privacy.attacks.page import FILES, HEADINGS, SHORT, cells, content, finding, price, remarks, write_study
    from cofal.privacy.attacks.scene import open_scene
    from cofal.privacy.attacks.study import attack
    from cofal.report.facts import Facts
    from cofal.rundir import RunDir
    from cofal.selection.aggregate.select import METHODS, aggregate_method
    from cofal.selection.api import SELECTORS, check_known

    levels = _levels(epsilons)
    check_known("method", method, METHODS if method not in SELECTORS else list(SELECTORS))
    aggregate_method(method)
    out = out or run_dir / "privacy"
    folder = RunDir(run_dir)
    least = min_region or Facts(folder).config.selection.min_region
    for name in FILES:
        check_writable(out / name)
    errors = Console(stderr=True)
    with errors.status("opening the run") as status:
        scene = open_scene(folder, seed, most)
        study = attack(scene, levels, method=method, min_region=least, steps=steps, seed=seed, told=status.update)
    command = shlex.join(["cofal", *sys.argv[1:]])
    files = write_study(study, out, command)
    if json_:
        typer.echo(json.dumps(content(study, command)))
        return
    typer.echo(f"{finding(study)}. {price(study)}")
    table = Table(title=f"Attacks on {run_dir}", title_justify="left", padding=(0, 0), collapse_padding=True)
    for number, heading in enumerate(SHORT):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    for row in study.rows:
        table.add_row(*cells(row))
    Console().print(table)
    typer.echo("; ".join(f"{short} = {long}" for short, long in zip(SHORT, HEADINGS) if short != long))
    for remark in remarks(study):
        typer.echo(f"* {remark}")
    typer.echo(f"Written: {', '.join(str(file) for file in files)}")


def _levels(text: str) -> list[float]:
    from cofal.errors import UserError
    from cofal.privacy.perturbation import noise_scale

    try:
        found = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError:
        raise UserError(f"--epsilons {text} is not a list of numbers; write e.g. --epsilons 0,0.3,0.6") from None
    if not found:
        raise UserError(f"--epsilons {text!r} names no level; write e.g. --epsilons 0,0.3,0.6")
    for epsilon in found:
        noise_scale(epsilon)
    return found


@privacy.command("spent")
def spent_command(
    site: Annotated[Path, typer.Argument(help="Folder of the site.", show_default=False)],
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show what a site's noised counts have spent of its privacy budget (\\[policy] count_noise in its site.toml).

    When the budget does not suffice for an answer, the site refuses it, and a selection from aggregates ends there.
    What else leaves in a selection, such as centroids and sums, has no noise and is not covered.

    Example: cofal privacy spent sites/north
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from cofal.federation.site_settings import read_settings
    from cofal.privacy.accountant import UNCOVERED, site_account

    settings = read_settings(site)
    noise = settings.policy.count_noise
    if noise is None:
        if json_:
            typer.echo(json.dumps({"site": settings.name, "budget": None}))
        else:
            typer.echo(f"Site {settings.name} puts no noise on its counts: policy.count_noise in site.toml is not set")
        return
    account = site_account(site, noise)
    kinds, spent = account.kinds(), account.spent()
    if json_:
        budget = {"epsilon": noise.epsilon, "delta": noise.delta}
        found = {"site": settings.name, "budget": budget, "spent": spent, "noise": kinds, "not_covered": UNCOVERED}
        typer.echo(json.dumps(found))
        return
    table = Table(title=f"Noised counts that left {settings.name}", title_justify="left")
    table.add_column("noise")
    for heading in ("parameter", "answers", "counts a sample may change"):
        table.add_column(heading, justify="right")
    for kind in kinds:
        table.add_row(kind["mechanism"], f"{kind['parameter']:g}", f"{kind['answers']:,}", f"{kind['times']:,}")
    Console().print(table)
    typer.echo(f"Spent: epsilon {spent:.4g} of {noise.epsilon:g}, at delta {noise.delta:g}")
    typer.echo(f"It covers these counts, for one sample more or less. Not covered: {', '.join(UNCOVERED)}")
