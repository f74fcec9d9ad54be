"""Finished cells on disk: one file of JSON lines an image set, each line a cell, found again by its key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cofal.errors import UserError
from cofal.files import append_line, read_lines
from cofal.reproduce.cells import Cell, cell_of

_REMEDY = "remove that line and run the command again"
_KEY = re.compile(rb'\{"key":"([0-9a-f]{16})",')  # how a line begins: found without reading all of it


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
        self._files: dict[str, _RecordFile] = {}  # by set

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.set}.jsonl"

    def has(self, cell: Cell, identity: dict[str, Any]) -> bool:
        return self._line(cell, identity) is not None

    def write(self, record: Record, identity: dict[str, Any]) -> None:
        """Append the record; of several with one key the last one counts."""
        content = {
            "key": record.cell.key(identity),
            "cell": record.cell.plain(),
            "identity": identity,
            "result": record.result,
            "seconds": round(record.seconds, 2),
            "versions": record.versions,
        }
        append_line(self.path(record.cell), json.dumps(content, separators=(",", ":"), allow_nan=False))

    def read(self, cell: Cell, identity: dict[str, Any]) -> Record:
        """The record of `cell`; one that is damaged, or is another cell's, is refused by file and line."""
        line = self._line(cell, identity)
        if line is None:
            raise UserError(f"{self.path(cell)} has no record of {cell.title}; run the command again")
        where = f"line {line.number} of {self.path(cell)}"
        try:
            content = json.loads(line.text)
        except ValueError as error:
            raise UserError(f"{where} is not valid JSON ({error}); {_REMEDY}") from error
        try:
            found = Record(cell_of(content["cell"]), content["result"], content["seconds"], content["versions"])
            steps = len(found.result["accuracy"]) if "accuracy" in found.result else len(cell.budgets)
        except (KeyError, TypeError) as error:
            raise UserError(f"{where} is not a whole record ({error!r}); {_REMEDY}") from error
        if found.cell != cell or content.get("identity") != identity:
            raise UserError(f"{where} is the record of another cell; {_REMEDY}")
        if steps != len(cell.budgets):
            raise UserError(f"{where} has {steps} accuracies for {len(cell.budgets)} budgets; {_REMEDY}")
        return found

    def _line(self, cell: Cell, identity: dict[str, Any]) -> _Line | None:
        if cell.set not in self._files:
            self._files[cell.set] = _RecordFile(self.path(cell))
        return self._files[cell.set].lines().get(cell.key(identity))


class _Line(NamedTuple):
    number: int  # in its file, from 1
    text: bytes


class _RecordFile:
    """The lines of one file by key: read once, and what was added since only when the file has changed."""

    def __init__(self, path: Path):
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._seen = (0, 0, 0)  # inode, size and time of the last change when it was read
        self._end = self._count = 0  # bytes and lines read so far

    def lines(self) -> dict[str, _Line]:
        """The last line of each key, as the file is now; what a killed process left of a line is none."""
        try:
            state = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            self._forget()
            return self._lines
        seen = (state.st_ino, state.st_size, state.st_mtime_ns)
        if seen != self._seen:
            if state.st_ino != self._seen[0] or state.st_size < self._end:
                self._forget()  # another file took the name: git or an editor did that
            self._add(read_lines(self.path, self._end))
            self._seen = seen
        return self._lines

    def _add(self, content: bytes) -> None:
        for text in content.split(b"\n")[:-1]:
            begin = _KEY.match(text)
            if begin is None:
                raise UserError(f"line {self._count + 1} of {self.path} is not a whole record; {_REMEDY}")
            self._count += 1
            self._end += len(text) + 1
            self._lines[begin[1].decode()] = _Line(self._count, text)


def total_seconds(records: Iterable[Record]) -> float:
    return sum(record.seconds for record in records)
