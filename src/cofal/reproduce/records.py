"""Finished cells on disk: one JSON file each, whole or not there, found again by its key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cofal.errors import UserError
from cofal.files import read_json, write_json
from cofal.reproduce.cells import Cell, cell_of

_REMEDY = "remove it and run the command again"


@dataclass(frozen=True)
class Record:
    """A cell and what came out of it."""

    cell: Cell
    result: dict[str, Any]  # accuracy (one per budget, in [0, 1]) and what else was measured
    seconds: float
    versions: dict[str, str]

    @property
    def accuracy(self) -> list[float]:
        return self.result["accuracy"]


class Records:
    """The records in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, cell: Cell, identity: dict[str, Any]) -> Path:
        return self.folder / cell.file_name(identity)

    def has(self, cell: Cell, identity: dict[str, Any]) -> bool:
        return self.path(cell, identity).exists()

    def write(self, record: Record, identity: dict[str, Any]) -> None:
        content = {
            "key": record.cell.key(identity),
            "cell": record.cell.plain(),
            "identity": identity,
            "result": record.result,
            "seconds": round(record.seconds, 2),
            "versions": record.versions,
        }
        write_json(self.path(record.cell, identity), content)

    def read(self, cell: Cell, identity: dict[str, Any]) -> Record:
        """The record of `cell`; one that is damaged, or is another cell's, is refused by name."""
        path = self.path(cell, identity)
        content = read_json(path)
        try:
            found = Record(cell_of(content["cell"]), content["result"], content["seconds"], content["versions"])
            key = content["key"]
            steps = len(found.result["accuracy"]) if "accuracy" in found.result else len(cell.budgets)
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} is not a whole record ({error!r}); {_REMEDY}") from error
        if key != cell.key(identity) or found.cell != cell or content.get("identity") != identity:
            raise UserError(f"{path} is the record of another cell; {_REMEDY}")
        if steps != len(cell.budgets):
            raise UserError(f"{path} has {steps} accuracies for {len(cell.budgets)} budgets; {_REMEDY}")
        return found

    def clean(self) -> None:
        """Remove half-written files whose process is gone; one that is alive may be a second command at work."""
        for leftover in self.folder.glob(".*.tmp"):
            process = leftover.name.rpartition(".json.")[2].partition("-")[0]
            if not process.isdigit() or not Path(f"/proc/{process}").exists():
                leftover.unlink(missing_ok=True)


def total_seconds(records: Iterable[Record]) -> float:
    return sum(record.seconds for record in records)
