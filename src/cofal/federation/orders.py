"""What the coordinator ordered and has not been told the outcome of: the same order again goes on, and asks no more."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cofal.errors import UserError
from cofal.files import read_json, write_json
from cofal.rundir import MAIN, RunDir


@dataclass(frozen=True)
class Order:
    """One selection or one training, by its number: whoever carries it out twice does it once."""

    phase: str  # select | train
    number: int
    budget: int = 0  # select: labels to ask for
    method: str = ""  # select: how, if not as the configuration says
    coordination: str = ""


def place_order(run: RunDir, phase: str, **wanted: Any) -> tuple[Order, bool]:
    """The order to carry out, on disk, and whether it was placed before: its process ended before its outcome was told.

    An order that was carried out, but whose outcome nobody was told, comes first; one of which nothing is on disk yet
    may be changed.
    """
    standing, order = open_order(run, phase), Order(phase, 1 + finished(run, phase), **wanted)
    if standing is None or standing.number == order.number:
        write_json(_file(run, phase), asdict(order))
        return order, standing == order
    if standing != Order(phase, standing.number, **wanted):
        raise UserError(
            f"{phase} number {standing.number} was cut short; see its outcome first: cofal server {phase} {run.path}"
            + (f" --budget {standing.budget}" if standing.budget else "")
            + (f" --method {standing.method}" if standing.method else "")
            + (f" --coordination {standing.coordination}" if standing.coordination else "")
        )
    return standing, True


def open_order(run: RunDir, phase: str) -> Order | None:
    """The order of this phase whose outcome was not told yet."""
    file = _file(run, phase)
    remedy = f"restore it from a backup; without it the next `cofal server {phase}` may do once more what was done"
    return Order(**read_json(file, remedy)) if file.exists() else None


def close_order(run: RunDir, phase: str) -> None:
    """The outcome was told."""
    _file(run, phase).unlink(missing_ok=True)


def finished(run: RunDir, phase: str) -> int:
    """How many selections, or trainings, have been carried out."""
    if phase == "select":
        return len(read_json(run.picks(MAIN))["steps"]) if run.picks(MAIN).exists() else 0
    return max((cell.get("training", 0) for cell in cells(run)), default=0)


def cells(run: RunDir) -> list[dict[str, Any]]:
    """The trained and evaluated classifiers of a deployment, by rising number of labels."""
    found = [read_json(file) for file in run.path.glob(f"cells/{MAIN}-b*.json")]
    return sorted(found, key=lambda cell: cell["budget"])


def _file(run: RunDir, phase: str) -> Path:
    return run.path / f".{phase}.order.json"
