"""`cofal reproduce encoders`: train what a scale needs and is not there yet, side by side, and tell how good it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cofal.errors import UserError
from cofal.progress import Bar, bar
from cofal.reproduce.encoders import EncoderFolder, EncoderJob, encoder_jobs, prepare_sites
from cofal.reproduce.grid import load_experiment
from cofal.reproduce.scales import Scale
from cofal.reproduce.workers import run_tasks


def train_encoders(
    folder: EncoderFolder,
    data: Path | None,
    cache: Path,
    jobs: int,
    only: list[str] | None = None,
    tell: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Train every missing encoder of the scale (or of the sets in `only`); returns the facts of all of them."""
    wanted = encoder_jobs(folder.scale, only)
    missing = [job for job in wanted if not folder.finished(job)]
    if missing:
        needed = data_folder(folder.scale, data, sorted({job.set for job in missing}))
        prepare_sites(folder, needed, cache, missing)
        tasks = [
            {"task": "encoder", "title": job.title, "job": asdict(job), "scale": folder.scale.model_dump(),
             "root": str(folder.root), "data": str(needed), "cache": str(cache)}
            for job in missing
        ]  # fmt: skip
        shown = _Rounds(folder, missing, needed)
        with closing(run_tasks(tasks, jobs, threads=max(1, (os.cpu_count() or 1) // jobs))) as answers:
            for finished in answers:
                shown.update()
                if finished:
                    tell(_line(finished[0]["title"], finished[1]))
    return [folder.facts(job) for job in wanted]


def trained_sets(names: Sequence[str], scale_name: str, scale: Scale) -> list[str]:
    """The sets behind `names` whose encoders are trained here."""
    cells = [cell for name in names for cell in load_experiment(name).cells(scale_name, scale)]
    return [name for name in dict.fromkeys(cell.set for cell in cells) if scale.sets[name].kind == "trained"]


def _line(title: str, facts: dict[str, Any]) -> str:
    size = f"{facts['images']} images, {facts['rounds']} rounds"
    return f"{title}: {size}, 10-NN {facts['knn']:.3f}, {facts['seconds']:.0f} s"


def data_folder(scale: Scale, data: Path | None, sets: list[str]) -> Path:
    """`data`, if it holds what `sets` read; a missing folder is told with what it must hold."""
    folders = {name: scale.sets[name].folder for name in sets if scale.sets[name].folder}
    if folders and data is None:
        raise UserError(f"--data is missing; name the folder that holds {', '.join(folders.values())}")
    for name, folder in folders.items():
        if data is not None and not (data / folder).exists():
            raise UserError(f"{data} has no {folder}, which {name} is read from; put it there or name another --data")
    return data or Path()


class _Rounds:
    """One bar over the rounds of all encoders, read from their run directories."""

    def __init__(self, folder: EncoderFolder, jobs: list[EncoderJob], data: Path):
        self._runs = [folder.run(job) for job in jobs]
        totals = [
            folder.scale.sets[job.set].config(data, job.on, job.seed, folder.scale.device).pretrain.rounds
            for job in jobs
        ]
        self._done = self._count()
        self._bar: Bar = bar("encoders, rounds", sum(totals), self._done)

    def _count(self) -> int:
        return sum(len(run.rounds()) for run in self._runs)

    def update(self) -> None:
        now = self._count()
        self._bar.advance(steps=now - self._done)
        self._done = now
