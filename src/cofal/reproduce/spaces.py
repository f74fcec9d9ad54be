"""From an image set and a split to the arrays of a federation, and the digests that stand for them.

Embeddings are pixels (digits), a public encoder's (an .npz file), or those of encoders trained here. What is known of
each is noted in `sets.json` beside the records, so that tables can be made again where the data is not at hand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cofal.baselines.system import Federation, Own
from cofal.data.partition import partition
from cofal.data.readers import read
from cofal.data.settings import DataSettings
from cofal.errors import UserError
from cofal.evaluation.picks import divide_into_cells
from cofal.files import read_json, write_json
from cofal.reproduce.cells import Cell
from cofal.reproduce.encoders import EncoderFolder, EncoderJob, digest_of, site_names
from cofal.reproduce.scales import Scale
from cofal.rng import generator
from cofal.selection.shares import divide


class Spaces:
    """All embeddings of a scale: where they are, what they are, and federations made of them."""

    def __init__(self, scale: Scale, encoders: EncoderFolder, data: Path | None, cache: Path, notes: Path):
        self.scale, self.encoders, self.data, self.cache = scale, encoders, data, cache
        self.notes = notes
        self._facts: dict[str, dict[str, Any]] = read_json(notes) if notes.exists() else {}
        self._fresh: set[str] = set()  # checked against the data in this process

    # --- what a cell's data is, without loading it

    def identity(self, cell: Cell) -> dict[str, Any]:
        """The digests behind a cell; part of its key."""
        found: dict[str, Any] = {"shared": self._space(cell)}
        if cell.needs_own:
            found["own"] = [self.facts(cell, site)["digest"] for site in site_names(cell.clients)]
        return found

    def facts(self, cell: Cell, site: str = "") -> dict[str, Any]:
        """What is known of the embeddings of a cell (of its `site`'s own ones): digest, 10-NN accuracy, ..."""
        name = self.name(cell, site)
        if name not in self._fresh:
            facts = self._look(cell, site)
            if facts is None and name not in self._facts:
                self._missing(cell, site)
            if facts is not None and facts != self._facts.get(name):
                self._facts[name] = facts
                write_json(self.notes, dict(sorted(self._facts.items())))
            self._fresh.add(name)
        return self._facts[name]

    def _space(self, cell: Cell) -> str:
        """The digest of the shared embeddings, and which of their rows the clients of a cell have."""
        digest: str = self.facts(cell)["digest"]
        return digest if cell.rows is None else f"{digest}, {cell.rows} rows of seed {cell.seed}"

    def has(self, cell: Cell) -> bool:
        """Are the facts of a cell's data known, from the data or from notes?"""
        return all(self.name(cell, site) in self._facts or self._look(cell, site) for site in self.sites(cell))

    @staticmethod
    def sites(cell: Cell) -> list[str]:
        """Whose embeddings a cell uses: the shared ones (an empty name), and each site's own where it needs them."""
        return ["", *(site_names(cell.clients) if cell.needs_own else [])]

    def known(self) -> dict[str, dict[str, Any]]:
        """All facts noted so far, by name."""
        return dict(self._facts)

    def name(self, cell: Cell, site: str = "") -> str:
        if self.scale.sets[cell.set].kind != "trained":
            return cell.set
        return self._job(cell, site).title

    def _job(self, cell: Cell, site: str = "") -> EncoderJob:
        """The encoder a cell uses. A shared one that is not trained for this very split stands in by a fixed rule:
        the same split's first seed, else the first IID one; an own one is always the site's own."""
        if site:
            return EncoderJob(cell.set, cell.split, cell.alpha, cell.seed, site)
        plans = self.scale.sets[cell.set].shared
        same = [plan for plan in plans if plan.plain == cell.on]
        if cell.encoder == "iid":
            same = [plan for plan in plans if plan.split == "iid"]
        plan = (same or [plan for plan in plans if plan.split == "iid"])[0]
        return EncoderJob(cell.set, plan.split, plan.alpha, cell.seed if cell.seed in plan.seeds else plan.seeds[0])

    def _look(self, cell: Cell, site: str) -> dict[str, Any] | None:
        """Facts from the data itself; None where it is not here."""
        plan = self.scale.sets[cell.set]
        if plan.kind == "trained":
            job = self._job(cell, site)
            return self.encoders.facts(job) if self.encoders.finished(job) else None
        if plan.kind == "public":
            file = None if self.data is None else self.data / plan.folder
            if file is None or not file.exists():
                return None
            digest = _file_digest(file, file.stat().st_mtime_ns)
            part = f", {plan.limit} rows" if plan.limit else ""
            return {"set": cell.set, "digest": digest + part, "file": file.name}
        arrays = _pixels(self.cache)
        return {"set": cell.set, "digest": digest_of(*arrays[:4]), "images": len(arrays[0])}

    def _missing(self, cell: Cell, site: str) -> None:
        plan = self.scale.sets[cell.set]
        if plan.kind == "trained":
            self.encoders.facts(self._job(cell, site))  # raises with the command that trains it
        where = "--data is missing" if self.data is None else f"{self.data} has no {plan.folder}"
        raise UserError(f"{where}; {cell.set} is read from {plan.folder}: name the folder that holds it with --data")

    def check(self, cell: Cell) -> None:
        """Refuse a cell whose arrays are not here, before any work: facts may be known from notes alone."""
        for site in self.sites(cell):
            if self._look(cell, site) is None:
                self._missing(cell, site)

    # --- the arrays

    def federation(self, cell: Cell) -> Federation:
        """The federation of a cell: shared embeddings cut by its split, and own ones where its system needs them."""
        train, train_labels, test, test_labels, classes = self._arrays(cell)
        parts = split_rows(train_labels, cell)
        own = None
        if cell.needs_own:
            own = []
            for number, site in enumerate(site_names(cell.clients)):
                rows, seen = self.encoders.embeddings(self._job(cell, site))
                if len(rows) != len(parts[number]):
                    raise UserError(
                        f"the own encoder of {site} saw {len(rows)} rows, its part has {len(parts[number])}"
                    )
                own.append(Own(np.array(rows), np.array(seen)))  # read-only maps: torch wants its own
        return Federation(
            [train[rows] for rows in parts], [train_labels[rows] for rows in parts], test, test_labels, classes, own,
            pooled=cell.pooled,
        )  # fmt: skip

    def _arrays(self, cell: Cell) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        """Training rows (or `cell.rows` of them), their labels, test rows, their labels, number of classes."""
        train, labels, test, test_labels, classes = self._whole(cell)
        if cell.rows is not None and cell.rows < len(train):
            kept = np.sort(generator(cell.seed, "rows").permutation(len(train))[: cell.rows])
            train, labels = train[kept], labels[kept]
        return train, labels, test, test_labels, classes

    def _whole(self, cell: Cell) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        plan = self.scale.sets[cell.set]
        if plan.kind == "pixels":
            return _pixels(self.cache)
        if plan.kind == "public":
            self.facts(cell)
            if self.data is None or not (self.data / plan.folder).exists():
                self._missing(cell, "")
            return _public(self.data / plan.folder, plan.limit)  # type: ignore[operator]
        job = self._job(cell)
        self.encoders.facts(job)
        train, test = (np.array(part) for part in self.encoders.embeddings(job))
        train_labels, test_labels, classes = self.encoders.labels(cell.set)
        return train, train_labels, test, test_labels, classes

    def cells_of(self, cell: Cell) -> tuple[list[np.ndarray], int]:
        """The cell of the embedding space that each client's rows lie in, and the number of cells: ten a class.

        The space is divided once, by k-means over all rows that the clients have, whatever the split.
        """
        train, labels, _, _, classes = self._arrays(cell)
        number = min(10 * classes, 500, len(train))
        found = _divided(self._space(cell), number, lambda: divide_into_cells([train], number)[0])
        return [found[rows] for rows in split_rows(labels, cell)], number


_DIVIDED: dict[tuple[str, int], np.ndarray] = {}  # a worker meets the same space again and again


def _divided(space: str, number: int, divide_now: Callable[[], np.ndarray]) -> np.ndarray:
    if (space, number) not in _DIVIDED:
        _DIVIDED[space, number] = divide_now()
    return _DIVIDED[space, number]


def split_rows(labels: np.ndarray, cell: Cell) -> list[np.ndarray]:
    """The rows of each client: the split that a run with this seed makes."""
    rng = generator(cell.seed, "partition")
    return partition(labels, cell.clients, split=cell.on.split, alpha=cell.alpha, rng=rng)


def client_budgets(cell: Cell, sizes: list[int]) -> list[list[int]]:
    """Each budget's equal shares, as a run divides them: [step][client], cumulative."""
    return [divide(total, [1] * len(sizes), sizes) for total in cell.budgets]


@lru_cache(maxsize=1)
def _pixels(cache: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """scikit-learn's digits, centred on the training mean, as unit rows."""
    train, test = read(DataSettings(source="digits"), cache)
    flat = [np.asarray(part.images, dtype=np.float64).reshape(len(part), -1) for part in (train, test)]
    centred = [rows - flat[0].mean(axis=0) for rows in flat]
    unit = [(rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32) for rows in centred]
    return unit[0], train.labels, unit[1], test.labels, len(train.classes)


@lru_cache(maxsize=1)
def _public(file: Path, limit: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """x_train, y_train, x_test, y_test of an .npz file, `limit` training rows of it; rows become unit float32."""
    try:
        with np.load(file, allow_pickle=False) as held:
            x, y, test_x, test_y = (held[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{file} is not an .npz with x_train, y_train, x_test, y_test ({error}); fetch it again"
        ) from error
    if limit is not None and limit < len(x):
        kept = np.sort(generator(0, "limit").permutation(len(x))[:limit])
        x, y = x[kept], y[kept]
    unit = []
    for rows in (x, test_x):
        exact = rows.astype(np.float32)
        unit.append(exact / np.linalg.norm(exact, axis=1, keepdims=True))
    return unit[0], y.astype(np.int64), unit[1], test_y.astype(np.int64), int(max(y.max(), test_y.max())) + 1


@lru_cache(maxsize=4)
def _file_digest(file: Path, _mtime: int) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
