"""A run's folder: what is in it, under which name, and how a killed run finds its last finished step again."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from cofal.config import Config, to_toml
from cofal.errors import UserError
from cofal.files import (
    append_line,
    missing_folders,
    read_json,
    remove_empty,
    write_fault,
    write_json,
    write_text,
    writer_of,
)

MAIN = "main"  # the one track of a deployment: a sequence of selections, each by a method of its own
_VERSIONS = ("cofal", "torch", "flwr", "numpy", "numba", "scikit-learn")


class RunDir:
    """Names and readers of a run's files; every write is atomic.

    config.toml, run.json      the resolved configuration; seed, versions, data, sites, traffic
    metrics.jsonl              one line a finished round of Phase I
    encoder.safetensors        the shared encoder
    picks/TRACK.json           the picks of every step of a track
    cells/TRACK-bN.json        one trained and evaluated classifier
    models/TRACK/              the classifier of the largest budget
    results.json               all cells: method, coordination, budget, seed, accuracy
    checkpoints/               the state of an unfinished phase
    status.json                of a deployment: where the phase under way stands, what each site last said
    server/, sites/            the two sides' own folders
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def info(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def encoder(self) -> Path:
        return self.path / "encoder.safetensors"

    @property
    def results(self) -> Path:
        return self.path / "results.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def map(self) -> Path:
        return self.path / "map.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def server(self) -> Path:
        return self.path / "server"

    @property
    def sites(self) -> Path:
        return self.path / "sites"

    def picks(self, track: str) -> Path:
        return self.path / "picks" / f"{track}.json"

    def cell(self, track: str, budget: int) -> Path:
        return self.path / "cells" / f"{track}-b{budget}.json"

    def model(self, track: str) -> Path:
        return self.path / "models" / track / "classifier.safetensors"

    def checkpoint(self, job: str) -> Path:
        return self.path / "checkpoints" / f"{job}.safetensors"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the run for this process; the system lets go of it when the process ends, however it ends.

        Where there is no run after all, what was made to hold it is gone again.
        """
        made: list[Path] = []
        try:
            made = missing_folders(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115  (held until the block ends)
        except OSError as error:
            remove_empty(made)
            raise write_fault(self.path, error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock.fileno()).st_nlink == 0:  # whoever held it took it away just now
                    raise BlockingIOError
            except BlockingIOError:
                raise UserError(
                    f"another process is at work in {self.path}; wait for it or choose another --out"
                ) from None
            # Half-written files of a killed process. A folder that is no run may be anything, such as a person's home:
            # there is at most the first file of all to look for.
            for leftover in self.path.rglob(".*.tmp") if self.config.exists() else self.path.glob(".config.toml.*.tmp"):
                if (writer := writer_of(leftover)) and not _at_work(writer):
                    leftover.unlink(missing_ok=True)
            try:
                yield
            finally:
                if not self.config.exists():
                    (self.path / ".lock").unlink(missing_ok=True)
                    remove_empty(made)

    def open(self, config: Config) -> bool:
        """Start the run (True) or go on with it; a folder that holds another configuration is refused."""
        text = to_toml(config)
        if self.config.exists():
            if self.config.read_text(encoding="utf-8") != text:
                raise UserError(
                    f"{self.path} holds a run with another configuration; choose another --out or remove the folder"
                )
            return False
        if any(entry.name != ".lock" for entry in self.path.iterdir()):
            raise UserError(f"{self.path} is not empty and holds no run; choose another --out")
        write_text(self.config, text)
        return True

    def note(self, **facts: Any) -> None:
        """Add facts to run.json."""
        known = read_json(self.info) if self.info.exists() else {"versions": versions(), "machine": platform.platform()}
        merged = {**known, **facts}
        if merged != known or not self.info.exists():
            write_json(self.info, merged)

    def log_round(self, **values: Any) -> None:
        append_line(self.metrics, json.dumps(values), durable=False)

    def rounds(self) -> list[dict[str, Any]]:
        """All whole lines of metrics.jsonl; a line cut short by a crash is left out."""
        if not self.metrics.exists():
            return []
        found = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def forget_rounds_after(self, job: str, last: int) -> None:
        """Drop the lines of `job` beyond round `last`: they were logged, but their checkpoint was not."""
        kept = [line for line in self.rounds() if line["job"] != job or line["round"] <= last]
        write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))


def _at_work(process: int) -> bool:
    """Is the process that writes a file alive? Beside a deployment's phase others write in its folder, too."""
    return process != os.getpid() and Path(f"/proc/{process}").exists()


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in _VERSIONS}}
