"""What is done in one cell: play its system on its federation and measure the picks; runs in a worker process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cofal.baselines.registry import find_system
from cofal.evaluation import picks
from cofal.reproduce.cells import REDUNDANCY, Cell, cell_of
from cofal.reproduce.encoders import EncoderFolder
from cofal.reproduce.records import Record, Records
from cofal.reproduce.redundancy import redundancy
from cofal.reproduce.scales import Scale
from cofal.reproduce.spaces import Spaces, client_budgets
from cofal.rundir import versions


def cell_task(task: dict[str, Any]) -> dict[str, Any]:
    """Compute one cell and write its record; `task` names the cell and where data, encoders and records are."""
    scale = Scale.model_validate(task["scale"])
    data = Path(task["data"]) if task["data"] else None
    spaces = Spaces(scale, EncoderFolder(Path(task["encoders"]), scale), data, Path(task["cache"]), Path(task["notes"]))
    cell = cell_of(task["cell"])
    clock = time.process_time()  # of this one core: what the cell costs, however busy the machine is
    result = measure(cell, spaces)
    seconds = time.process_time() - clock
    Records(Path(task["records"])).write(Record(cell, result, seconds, versions()), spaces.identity(cell))
    return {"seconds": seconds}


def measure(cell: Cell, spaces: Spaces) -> dict[str, Any]:
    """The result of a cell, as its record keeps it: accuracy and what was picked, one entry per budget."""
    federation = spaces.federation(cell)
    cells_of, number = spaces.cells_of(cell)
    budgets = client_budgets(cell, [len(rows) for rows in federation.embeddings])
    if cell.system.startswith(REDUNDANCY):
        return redundancy(cell, federation, cells_of, number, budgets[-1])
    outcome = find_system(cell.system, cell.params)(federation, budgets, cell.seed)
    picked = [
        picks.measure(outcome.picks(step), cells_of, federation.labels, federation.classes)
        for step in range(len(budgets))
    ]
    decided = {}
    if outcome.decisions:  # the first is what `cofal advise` would have told before anyone labelled
        first = outcome.decisions[0]
        decided = {"auto": {**first.as_dict(), "central_wins": round(first.central_wins, 4)}}
    return {
        **decided,
        "accuracy": [round(value, 6) for value in outcome.accuracy],
        "coverage": [each.coverage for each in picked],
        "redundancy": [each.redundancy for each in picked],
        "classes_found": [each.classes_found for each in picked],
        "class_balance": [round(each.class_balance, 4) for each in picked],
        "rounds": outcome.rounds,
        "bytes_up": outcome.bytes_up,
    }
