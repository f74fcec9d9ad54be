"""What the server hears of the sites' embeddings in a selection from aggregates, kept for its report: centroids alone.

Nothing is asked for it: these are the centroids that sites send openly, and the directions that the picks were near to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cofal.files import read_json, write_json, write_npy
from cofal.rundir import RunDir

if TYPE_CHECKING:  # a report reads what is kept here, and needs none of the selection's packages
    from cofal.selection.aggregate.exchange import Arrays, Question

# By method: in the question that settles a selection, the array of directions and each site's rows of it.
_SETTLED = {
    "maxherding": ("candidates", "picks"),
    "probcover": ("refined", "mine"),
    "typiclust": ("centers", "clusters"),
}
_CENTROIDS = ("means", "centers")  # names of the arrays of an answer that hold centroids


@dataclass
class Overheard:
    """The centroids of each site and the direction of each pick of one selection."""

    method: str
    names: Sequence[str]
    dimension: int
    centroids: dict[str, list[np.ndarray]] = field(default_factory=dict)  # by site, arrays (m, d)
    counts: dict[str, list[int]] = field(default_factory=dict)  # by site, samples of each centroid, where it was told
    _directions: np.ndarray | None = None  # (c, d)
    _rows: list[list[int]] = field(
        default_factory=list
    )  # by site, rows of `_directions`; below 0: the site's own choice

    def question(self, asked: Question) -> None:
        """Note the question that settles the picks."""
        if asked.kind != "settle":
            return
        array, own = _SETTLED[self.method]
        first = int(asked.numbers.get("given", 0))  # directions around samples labelled before come first
        self._directions = asked.arrays[array]
        told = [asked.told(site)[own].tolist() for site in range(len(self.names))]
        self._rows = [[first + row if row >= 0 else -1 for row in rows] for rows in told]

    def answers(self, given: Sequence[Arrays]) -> None:
        """Note the centroids in the sites' answers."""
        for name, arrays in zip(self.names, given, strict=True):
            for key in _CENTROIDS:
                rows = arrays.get(key)
                if rows is not None and rows.ndim == 2 and rows.shape[1] == self.dimension:
                    self.centroids.setdefault(name, []).append(rows)
                    told = arrays.get("counts", np.zeros(len(rows)))
                    self.counts.setdefault(name, []).extend(np.asarray(told).astype(int).tolist())

    def keep(self, run: RunDir, track: str, first: int, sites: Sequence[str]) -> None:
        """Write it to the server's folder. `first`: rank of the selection's first pick; `sites`: whose each pick is."""
        if self._directions is None or not self.centroids:
            return
        turn = {name: iter(rows) for name, rows in zip(self.names, self._rows, strict=True)}
        picks = [next(turn[name], -1) for name in sites]
        used = sorted(set(picks) - {-1})
        place = {row: number for number, row in enumerate(used)}
        parts = [rows for name in self.names for rows in self.centroids.get(name, [])] + [self._directions[used]]
        file = heard_file(run, track, first)
        write_npy(file.with_suffix(".npy"), np.concatenate([part.astype(np.float16) for part in parts]))
        told = {name: self.counts.get(name, []) for name in self.names}
        write_json(
            file, {"first": first, "counts": told, "sites": list(sites), "picks": [place.get(row, -1) for row in picks]}
        )


@dataclass(frozen=True)
class Heard:
    """What was kept of one selection."""

    centroids: dict[str, np.ndarray]  # by site (m, d) float32
    counts: dict[str, list[int]]  # by site, samples of each centroid; 0 where a site did not tell
    picks: list[
        tuple[int, str, np.ndarray | None]
    ]  # rank, site, and the direction (d,) it was near to, if one is known


def heard_file(run: RunDir, track: str, first: int) -> Path:
    return run.server / "aggregates" / f"{track}-{first}.json"


def read_heard(run: RunDir, track: str) -> list[Heard]:
    """What was kept of the selections of a track, earliest first."""
    files = sorted((run.server / "aggregates").glob(f"{track}-*.json"), key=lambda file: read_json(file)["first"])
    return [_read(file) for file in files]


def _read(file: Path) -> Heard:
    record = read_json(file)
    rows = np.load(file.with_suffix(".npy"), allow_pickle=False).astype(np.float32)
    centroids, begin = {}, 0
    for name, counts in record["counts"].items():
        centroids[name] = rows[begin : begin + len(counts)]
        begin += len(counts)
    directions = rows[begin:]
    picks = [
        (record["first"] + number, site, directions[row] if row >= 0 else None)
        for number, (site, row) in enumerate(zip(record["sites"], record["picks"], strict=True))
    ]
    return Heard(centroids, record["counts"], picks)
