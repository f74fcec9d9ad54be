"""The server's side of a run: one ServerApp that drives the phases over whatever Grid it is given.

`pipeline` is a whole experiment; the other phases are a deployment's, run one by one, days apart, with state on disk.
"""

from __future__ import annotations

import logging
import sys
import tomllib
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cofal.config import Config, parse
from cofal.data.imageset import ImageSet
from cofal.errors import CofalError, UserError
from cofal.federation.fleet import Fleet
from cofal.federation.memory import give_back_large_blocks
from cofal.federation.orders import Order, finished, open_order
from cofal.federation.phases.advising import advise_now
from cofal.federation.phases.aggregating import Task, check_sites
from cofal.federation.phases.embedding import gather
from cofal.federation.phases.labelling import ask_progress, check_budget, chosen, select_more, train_now
from cofal.federation.phases.likeness import site_worth
from cofal.federation.phases.pretrain import finished_encoder, pretrain
from cofal.federation.phases.selecting import assign, select_step, site_budgets, told_decision, tracks
from cofal.federation.phases.training import Examiner, train_cell
from cofal.federation.rounds import make_strategy
from cofal.federation.standing import Standing
from cofal.files import read_json, write_json
from cofal.progress import bar
from cofal.rundir import MAIN, RunDir

log = logging.getLogger("cofal")
app = ServerApp()

PHASES = ("pretrain", "embed", "select", "train", "progress", "advise")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the run in the folder `run-dir`; `sites` is how many clients to wait for.

    `phase` is `pipeline` (the default) or one of PHASES; `select` takes `budget`, `method` and `coordination` from the
    order on disk or, without one, from here.
    """
    options = context.run_config
    run = RunDir(Path(str(options["run-dir"])))
    config = parse(tomllib.loads(run.config.read_text(encoding="utf-8")), str(run.config))
    phase, sites = str(options.get("phase", "pipeline")), int(options["sites"])
    if phase == "pipeline":
        pipeline(grid, config, run, sites)
        return
    if phase not in PHASES:
        raise UserError(f"there is no phase {phase!r}; known: pipeline, {', '.join(PHASES)}")
    order = open_order(run, phase) or Order(
        phase,
        1 + finished(run, phase),
        int(options.get("budget", 0)),
        str(options.get("method", "")),
        str(options.get("coordination", "")),
    )
    _speak()
    give_back_large_blocks()
    with run.alone():
        single_phase(grid, config, run, sites, order)


def single_phase(grid: Grid, config: Config, run: RunDir, sites: int, order: Order) -> dict[str, Any]:
    """One phase of a deployment; its outcome and who was missing are in `status.json` when it returns or raises."""
    standing, fleet = Standing(run.status, order.phase), None
    try:
        fleet = _connect(grid, config, run, sites, standing)
        outcome = _do(fleet, config, run, order)
    except BaseException as error:
        reason = str(error) if isinstance(error, CofalError) else type(error).__name__
        standing.end("failed", fleet.missed if fleet else {}, reason)
        raise
    finally:
        if fleet:
            run.note(traffic=fleet.counted())
    standing.end("done", fleet.missed)
    for name, why in fleet.missed.items():
        log.warning("without %s: %s", name, why)
    return outcome


def _do(fleet: Fleet, config: Config, run: RunDir, order: Order) -> dict[str, Any]:
    test = _test_set(run)
    if order.phase == "progress":
        return ask_progress(fleet)
    if order.phase == "pretrain":
        encoder = pretrain(fleet, config, run, test)
        run.note(encoder=encoder.digest)
        return {"encoder": encoder.digest}
    encoder = finished_encoder(fleet, config, run)
    if order.phase == "embed":
        shared = gather(fleet, config, run, encoder)
        run.note(share=shared.share)
        return {"share": shared.share, "sites": shared.pool}
    if order.phase == "advise":
        check_budget(order.budget)
        return advise_now(fleet, config, run, encoder, order.budget)
    if order.phase == "select":
        check_budget(order.budget)
        aggregate = chosen(config, order).selection.coordination == ["aggregate"]
        check_sites(fleet, secure=config.selection.secure_sums and aggregate)
        return select_more(fleet, config, run, encoder, order)
    return train_now(fleet, config, run, encoder, order, test)


def pipeline(grid: Grid, config: Config, run: RunDir, sites: int) -> list[dict[str, Any]]:
    """All three phases; returns the cells that `results.json` holds."""
    test = _test_set(run)
    fleet = _connect(grid, config, run, sites)
    budgets = site_budgets(config, fleet)  # before the long phase: what cannot be met or done is told at once
    make_strategy(config.train.strategy, config.train.strategy_options)
    check_sites(fleet, secure=config.selection.secure_sums)
    encoder = pretrain(fleet, config, run, test)
    run.note(traffic=fleet.counted())
    shared = gather(fleet, config, run, encoder)
    if config.selection.shares == "auto":
        none = dict.fromkeys(fleet.names, 0)
        task = Task(encoder.digest, MAIN, config.selection.methods[0], none, none)
        worth = site_worth(fleet, config, task, shared.dimension, shared.embeddings, config.selection.budgets[-1])
        budgets = site_budgets(config, fleet, worth)
    examiner = Examiner(fleet, config, encoder, test)
    results = []
    shown = bar("Phase II+III", len(tracks(config)) * len(budgets))
    for track in tracks(config):
        for step, total in enumerate(config.selection.budgets):
            picks = select_step(fleet, config, run, encoder, shared, track, step, budgets)
            cell = {"method": track.method, "coordination": track.coordination, "budget": total, "track": track.name}
            if not run.cell(track.name, total).exists():
                assign(fleet, track.name, picks, told_decision(run, track.name, step))
            results.append(train_cell(fleet, config, run, encoder, shared.dimension, examiner, cell))
            shown.advance(f"{track.name} {total}: {100 * results[-1]['accuracy']:.1f} %")
        run.note(traffic=fleet.counted())
    run.note(encoder=encoder.digest, share=shared.share)
    write_json(run.results, results)  # the last file: a folder that holds it is a finished run
    return results


def _connect(grid: Grid, config: Config, run: RunDir, sites: int, standing: Standing | None = None) -> Fleet:
    """The sites of this run, those of its earlier processes under the same names; traffic is counted on."""
    info = read_json(run.info) if run.info.exists() else {}
    fleet = Fleet.gather(
        grid,
        expected=sites,
        timeout=config.engine.timeout,
        min_clients=config.engine.min_clients,
        known=info.get("nodes", {}) if standing else {},
        standing=standing,
    )
    fleet.count_on(info.get("traffic", {}))
    facts = {"sites": {**info.get("sites", {}), **{name: each.samples for name, each in fleet.members.items()}}}
    if standing:
        facts["nodes"] = {**info.get("nodes", {}), **{name: each.node for name, each in fleet.members.items()}}
    run.note(**facts)
    return fleet


def _test_set(run: RunDir) -> ImageSet | None:
    return ImageSet.open(run.server / "test") if (run.server / "test").exists() else None


def _speak() -> None:
    """Let the coordinator, who follows the run from another process, read what happens."""
    if not log.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
