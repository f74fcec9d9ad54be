"""The server's side of a run: one ServerApp that drives the three phases over whatever Grid it is given."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cofal.config import Config, parse
from cofal.data.imageset import ImageSet
from cofal.federation.fleet import Fleet
from cofal.federation.phases.aggregating import check_sites
from cofal.federation.phases.embedding import gather
from cofal.federation.phases.pretrain import pretrain
from cofal.federation.phases.selecting import assign, select_step, site_budgets, tracks
from cofal.federation.phases.training import Examiner, train_cell
from cofal.files import read_json, write_json
from cofal.progress import bar
from cofal.rundir import RunDir

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or go on with, the run in the folder `run-dir`; `sites` is how many clients to wait for."""
    run = RunDir(Path(str(context.run_config["run-dir"])))
    config = parse(tomllib.loads(run.config.read_text(encoding="utf-8")), str(run.config))
    pipeline(grid, config, run, sites=int(context.run_config["sites"]))


def pipeline(grid: Grid, config: Config, run: RunDir, sites: int) -> list[dict[str, Any]]:
    """All three phases; returns the cells that `results.json` holds."""
    test = ImageSet.open(run.server / "test") if (run.server / "test").exists() else None
    fleet = Fleet.gather(grid, expected=sites, timeout=config.engine.timeout, min_clients=config.engine.min_clients)
    if run.info.exists():  # what an interrupted process of this run exchanged before
        fleet.count_on(read_json(run.info).get("traffic", {}))
    run.note(sites={name: member.samples for name, member in fleet.members.items()})
    budgets = site_budgets(config, fleet)  # before the long phase: a budget that cannot be met is told at once
    check_sites(fleet, secure=config.selection.secure_sums)
    encoder = pretrain(fleet, config, run, test)
    run.note(traffic=fleet.counted())
    shared = gather(fleet, config, run, encoder)
    examiner = Examiner(fleet, config, encoder, test)
    results = []
    shown = bar("Phase II+III", len(tracks(config)) * len(budgets))
    for track in tracks(config):
        for step, total in enumerate(config.selection.budgets):
            picks = select_step(fleet, config, run, encoder, shared, track, step, budgets)
            cell = {"method": track.method, "coordination": track.coordination, "budget": total, "track": track.name}
            if not run.cell(track.name, total).exists():
                assign(fleet, track.name, picks)
            results.append(train_cell(fleet, config, run, encoder, shared.dimension, examiner, cell))
            shown.advance(f"{track.name} {total}: {100 * results[-1]['accuracy']:.1f} %")
        run.note(traffic=fleet.counted())
    run.note(encoder=encoder.digest, share=shared.share)
    write_json(run.results, results)  # the last file: a folder that holds it is a finished run
    return results
