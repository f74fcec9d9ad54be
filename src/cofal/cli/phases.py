"""`cofal server pretrain | embed | select | train | status | report`: the phases of a deployment, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cofal.cli.server import Folder, server

if TYPE_CHECKING:
    from cofal.rundir import RunDir

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Sites = Annotated[
    int | None, typer.Option(help="How many sites to wait for.  \\[default: all that are enrolled]", show_default=False)
]


@server.command("pretrain")
def pretrain_command(folder: Folder, sites: Sites = None, json_: Json = False) -> None:
    """Phase I: the sites train the shared encoder together. Cut short, the same command goes on where it stopped.

    Example: cofal server pretrain federation
    """
    run = run_now(folder, "pretrain", sites, json_)
    _print(json_, {"encoder": str(run.encoder), **_missed(run)}, f"The encoder is in {run.encoder}.", run)


@server.command("embed")
def embed_command(folder: Folder, sites: Sites = None, json_: Json = False) -> None:
    """Every site embeds its images with the encoder; what it shares of that, config.toml and its own policy say.

    `select` does this by itself where it was not done; on its own it spreads the work.

    Example: cofal server embed federation
    """
    from cofal.files import read_json

    run = run_now(folder, "embed", sites, json_)
    pool = {name: site["pool"] for name, site in read_json(run.server / "embeddings" / "index.json")["sites"].items()}
    share = read_json(run.info)["share"]
    told = {"raw": "as they are", "perturbed": "with noise", "none": "not at all"}[share]
    text = "".join(f"{name}: {count:,} samples embedded\n" for name, count in pool.items())
    _print(json_, {"share": share, "sites": pool, **_missed(run)}, f"{text}Embeddings were shared {told}.", run)


@server.command("select")
def select_command(
    folder: Folder,
    budget: Annotated[int, typer.Option(help="Labels to ask for now, over all sites together.", show_default=False)],
    method: Annotated[
        str, typer.Option(help="probcover, typiclust, maxherding or random.  \\[default: config.toml]")
    ] = "",
    coordination: Annotated[
        str, typer.Option(help="central, aggregate, per-client or auto.  \\[default: config.toml]")
    ] = "",
    sites: Sites = None,
    json_: Json = False,
) -> None:
    """Phase II: choose what the sites shall label next, given all that was asked before.

    No sample is asked twice; one that was skipped is replaced. Cut short, the same command finishes what it began and
    asks for no more than that.

    Example: cofal server select federation --budget 10
    """
    from cofal.config import parse
    from cofal.errors import UserError
    from cofal.federation.orders import close_order, place_order
    from cofal.files import read_json
    from cofal.rundir import MAIN, RunDir

    given = {"methods": [method] if method else [], "coordination": [coordination] if coordination else []}
    parse({"selection": {key: value for key, value in given.items() if value}}, "cofal server select")
    if budget < 1:
        raise UserError(f"--budget {budget} asks for nothing; give the number of labels, 1 or more")
    order, again = place_order(RunDir(folder), "select", budget=budget, method=method, coordination=coordination)
    if again and not json_:
        print(f"Selection {order.number} was cut short: going on with it.")
    run = run_now(folder, "select", sites, json_, fresh=not again)
    step = read_json(run.picks(MAIN))["steps"][order.number - 1]
    counts = {name: sum(pick["client"] == name for pick in step["picks"]) for name in sorted(_names(step))}
    away = sorted(_names(step) - set(step["told"]))
    lines = [f"Selection {order.number}, {step['method']} {step['coordination']}: {sum(counts.values())} samples."]
    lines += [
        f"  {name}: {count}" + (" (told when it is back)" if name in away else "") for name, count in counts.items()
    ]
    lines.append(f"The sites label now; cofal server status {folder} --ask shows how far they are.")
    close_order(run, "select")
    keep = ("number", "budget", "more", "method", "coordination", "seconds")
    _print(
        json_,
        {**{key: step[key] for key in keep}, "sites": counts, "away": away, **_missed(run)},
        "\n".join(lines),
        run,
    )


@server.command("train")
def train_command(folder: Folder, sites: Sites = None, json_: Json = False) -> None:
    """Phase III: train and evaluate the classifier on the labels that are there now.

    Label more and train again for the next point of the curve. Cut short, the same command goes on where it stopped.

    Example: cofal server train federation
    """
    from cofal.federation.orders import cells, close_order, place_order
    from cofal.rundir import RunDir

    order, again = place_order(RunDir(folder), "train")
    run = run_now(folder, "train", sites, json_, fresh=not again)
    (cell,) = (cell for cell in cells(run) if cell["training"] == order.number)
    lines = [f"{name}: {_progress_words(each)}" for name, each in cell["sites"].items()]
    lines.append(f"Trained on {cell['budget']} labels: accuracy {100 * cell['accuracy']:.1f} %.")
    lines.append(f"The classifier is in {run.model(cell['track'])}; cofal server report {folder} shows the curve.")
    close_order(run, "train")
    _print(json_, {**cell, **_missed(run)}, "\n".join(lines), run)


@server.command("status")
def status_command(
    folder: Folder,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask the sites how far their labelling is (a few seconds).")
    ] = False,
    json_: Json = False,
) -> None:
    """Sites, phase, round, time left; what the sites last told of their labelling, or with --ask what they say now.

    Example: cofal server status federation --ask
    """
    import json

    from cofal.deploy.control_api import Away, Control
    from cofal.deploy.runs import is_up
    from cofal.deploy.server_folder import ServerFolder
    from cofal.federation.standing import read_standing
    from cofal.report.standing import print_standing

    made = ServerFolder(folder)
    made.settings()
    if ask:
        run_now(folder, "progress", None, quiet=True)
    nodes = []
    if up := is_up(folder):
        try:
            with Control(made) as control:
                nodes = control.nodes()
        except Away:
            up = False
    names = sorted(file.stem for file in made.enrolled.glob("*.pub"))
    facts = {"server": "up" if up else "down", **read_standing(made.status, names, {n.name: n.online for n in nodes})}
    if json_:
        print(json.dumps(facts))
    else:
        print_standing(facts)


@server.command("report")
def report_command(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option(help="The HTML file to write. Default: report.html in the server's folder.")
    ] = None,
) -> None:
    """Write the report: the curve over the trainings so far, what each selection asked for, what crossed the line.

    Example: cofal server report federation --out report.html
    """
    from cofal.cli.report import report_command as report

    report(folder, out)


def run_now(folder: Path, phase: str, sites: int | None, quiet: bool, fresh: bool = False) -> RunDir:
    """Run a phase to its end. An order that was never begun (`fresh`) is taken back when it cannot even start."""
    from cofal.deploy.runs import NotStarted, run_phase
    from cofal.deploy.server_folder import ServerFolder
    from cofal.federation.orders import close_order

    run = ServerFolder(folder)
    enrolled = len(list(run.enrolled.glob("*.pub")))
    try:
        run_phase(folder, phase, tell=(lambda line: None) if quiet else print, sites=sites or enrolled)
    except NotStarted:
        if fresh:
            close_order(run, phase)
        raise
    return run


def _names(step: dict[str, Any]) -> set[str]:
    return {pick["client"] for pick in step["picks"]}


def _progress_words(counts: dict[str, int]) -> str:
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    return f"{counts['labelled']} of {counts['asked']} asked samples labelled{skipped}"


def _missed(run: RunDir) -> dict[str, Any]:
    from cofal.files import read_json

    return {"missing": read_json(run.status).get("missed", {})} if run.status.exists() else {"missing": {}}


def _print(json_: bool, facts: dict[str, Any], text: str, run: RunDir) -> None:
    import json

    if json_:
        print(json.dumps(facts))
        return
    print(text)
    for name, why in _missed(run)["missing"].items():
        print(f"Without {name}: {why}")
