"""`cofal advise` on a running deployment: what coordination is worth to these sites, from aggregates alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cofal.config import Config
from cofal.errors import UserError
from cofal.evaluation.advice import advise_from
from cofal.federation.fleet import Fleet
from cofal.federation.phases.aggregating import Task, consortium_of, converse
from cofal.federation.phases.embedding import gather
from cofal.federation.phases.likeness import LIKENESS, measure_likeness
from cofal.federation.phases.pretrain import Encoder
from cofal.federation.phases.selecting import share_weights
from cofal.files import write_json
from cofal.rng import generator
from cofal.rundir import MAIN, RunDir
from cofal.selection.auto_aggregate import holdings
from cofal.selection.shares import divide
from cofal.selection.worth import as_weights, number_of_worth_cells


def advise_now(fleet: Fleet, config: Config, run: RunDir, encoder: Encoder, budget: int) -> dict[str, Any]:
    """Advice for `budget` labels over all sites; it is kept in the server's folder for the command that asked."""
    if len(fleet.names) < 2:
        raise UserError(f"advice on coordination needs at least two sites; here is {', '.join(fleet.names) or 'none'}")
    veiled = config.selection.model_copy(update={"coordination": ["aggregate"], "methods": ["maxherding"]})
    dimension = gather(fleet, config.model_copy(update={"selection": veiled}), run, encoder).dimension
    fleet.phase = "advise"
    none = dict.fromkeys(fleet.names, 0)
    task = Task(encoder.digest, MAIN, LIKENESS, none, none)
    decision = measure_likeness(fleet, config, task, dimension)
    consortium = consortium_of(fleet, task, dimension)
    rng = generator(config.seed, "advice")
    cells = number_of_worth_cells(budget, sum(consortium.sizes))
    least = config.selection.min_region
    counts, _ = converse(fleet, task, holdings(consortium, cells, rng, min_region=least, blurred=False))
    room = [size - known for size, known in zip(consortium.sizes, consortium.labeled)]
    budgets = divide(budget, share_weights(config, fleet, as_weights(counts)), room)
    advice = advise_from(decision, counts, budgets, rng)
    found = {"clients": fleet.names, **advice.as_dict(), "told": advice.in_words(fleet.names)}
    write_json(advice_file(run), found)
    return found


def advice_file(run: RunDir) -> Path:
    """Where the last advice is kept."""
    return run.server / "advice.json"
