"""A client's own folder: images, embeddings, what it was asked, the labels it knows, its policy and its ledger.

The server never opens one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.federation.site_settings import SETTINGS, SiteSettings, read_settings
from cofal.files import read_json, write_json, write_npy
from cofal.labeling.store import LabelStore
from cofal.privacy import ledger
from cofal.privacy.releases import Releases


class Site:
    """One client's data and state. All state is in files, so that any process may answer the next message."""

    def __init__(self, folder: Path, settings: SiteSettings):
        self.folder, self.settings, self.name = folder, settings, settings.name
        self.train = self._images(settings.images, settings.rows)
        self.test = self._images(settings.test_images, settings.test_rows) if settings.test_images else None
        self.ledger = ledger.Ledger(folder / ledger.FILE, sync=settings.ledger_sync)
        self.releases = Releases(folder / "perturbed")
        self._position = {sample: row for row, sample in enumerate(self.train.ids)}
        self._embeddings: dict[str, np.ndarray] = {}
        self._asked: dict[str, list[str]] = {}  # of a simulated site
        self._examples: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def _images(self, folder: str, rows: str) -> ImageSet:
        images = ImageSet.open(self.folder / folder)
        return images.subset(np.load(self.folder / rows, allow_pickle=False)) if rows else images

    def positions(self, ids: list[str]) -> np.ndarray:
        """Rows of `ids` in this site's image set; an id that is not this site's is refused by name."""
        try:
            return np.array([self._position[sample] for sample in ids], dtype=np.int64)
        except KeyError as error:
            raise UserError(f"site {self.name} has no sample {error.args[0]!r}; ask it for its own ids") from None

    # --- embeddings, kept by the digest of the encoder that made them

    def has_embeddings(self, digest: str) -> bool:
        return digest in self._embeddings or self._embedding_file(digest).exists()

    def embeddings(self, digest: str) -> np.ndarray:
        """(n, d) float32 unit rows in the order of `train.ids`."""
        if digest not in self._embeddings:
            if not self._embedding_file(digest).exists():
                raise UserError(f"site {self.name} has no embeddings of encoder {digest}; ask it to embed first")
            self._embeddings[digest] = np.load(self._embedding_file(digest), mmap_mode="r", allow_pickle=False)
        return self._embeddings[digest]

    def keep_embeddings(self, digest: str, embeddings: np.ndarray) -> None:
        write_npy(self._embedding_file(digest), embeddings)
        self._embeddings[digest] = embeddings

    def _newest_embeddings(self) -> str:
        """Digest of the encoder that embedded last; empty if none did."""
        files = sorted((self.folder / "embeddings").glob("*.npy"), key=lambda file: file.stat().st_mtime_ns)
        return files[-1].stem if files else ""

    def _embedding_file(self, digest: str) -> Path:
        return self.folder / "embeddings" / f"{checked_digest(digest)}.npy"

    # --- questions and labels, by track (one sequence of selections; a deployment has one, an experiment many)
    # A simulated site keeps the list of what was asked in a file and its data set answers; at any other site people
    # answer, and questions and answers are in its label store.

    @cached_property
    def store(self) -> LabelStore | None:
        """The annotators' answers; None at a simulated site."""
        return None if self.settings.oracle else LabelStore.open(self.folder, self.train.classes)

    def ask(self, track: str, ids: list[str], why: Mapping[str, Any] | None = None) -> None:
        """Set the samples asked so far in `track`, in order. The whole list each time: asking again changes nothing.

        why: what the annotators are told of those that were not asked before; the encoder is the last one, unless told.
        """
        if len(set(ids)) != len(ids):
            raise UserError(f"track {track} asks for a sample twice; send each id once")
        self.positions(ids)
        file = self._asked_file(track)
        if self.asked(track) == ids:
            return
        if self.store is not None:
            why = {"digest": self._newest_embeddings(), **(why or {})}
            self.store.ask(track, ids, why=dict.fromkeys(ids, why), selection=str(why.get("selection", "")))
            return
        write_json(file, ids)
        self._asked[track] = list(ids)
        self._examples.pop(track, None)

    def asked(self, track: str) -> list[str]:
        if self.store is not None:
            return self.store.asked(track)
        if track not in self._asked:
            file = self._asked_file(track)
            self._asked[track] = read_json(file) if file.exists() else []
        return self._asked[track]

    def labelled(self, track: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows (m,) and labels (m,) of the samples whose label is known in `track`."""
        if self.store is not None:
            number = {name: place for place, name in enumerate(self.train.classes)}
            given = {sample: name for sample, name in self.store.labels(track).items() if sample in self._position}
            found = {**self.known_classes(), **given}
            return self.positions(list(found)), np.array([number[name] for name in found.values()], dtype=np.int64)
        if track not in self._examples:
            ids = [*self.settings.known_labels]
            ids += [sample for sample in self.asked(track) if sample not in set(ids)]
            rows = self.positions(ids)
            labels = self.train.labels[rows]
            self._examples[track] = (rows[labels >= 0], labels[labels >= 0])
        return self._examples[track]

    def known_classes(self) -> dict[str, str]:
        """Class by id of the samples whose labels were known before anyone was asked."""
        rows = self.positions(self.settings.known_labels)
        labels = self.train.labels[rows].tolist()
        named = zip(self.settings.known_labels, labels, strict=True)
        return {sample: self.train.classes[label] for sample, label in named if label >= 0}

    def counts(self, track: str) -> dict[str, int]:
        """How many samples were asked in `track`, and of those labelled and skipped: all that the server is told."""
        if self.store is not None:
            found = self.store.progress(track)
            return {"asked": found.asked, "labelled": found.labelled, "skipped": found.skipped}
        asked = self.positions(self.asked(track))
        return {"asked": len(asked), "labelled": int((self.train.labels[asked] >= 0).sum()), "skipped": 0}

    # --- the pool of selections: all samples but the skipped ones

    def pool(self, selection: str = "") -> np.ndarray:
        """Rows (m,) that a selection may use, ascending: those of now, or as when `selection` first asked for them.

        A selection of many messages needs the second: a sample skipped in its middle would change its answers.
        """
        if self.store is None:
            return np.arange(len(self.train.ids))
        out = self.store.skipped_for(selection) if selection else set(self.store.skipped())
        return np.array([row for row, sample in enumerate(self.train.ids) if sample not in out], dtype=np.int64)

    def pool_embeddings(self, digest: str, pool: np.ndarray) -> np.ndarray:
        """(m, d) float32 unit rows of `pool` (m,); the file itself, uncopied, if that is every sample."""
        embeddings = self.embeddings(digest)
        return embeddings if len(pool) == len(embeddings) else embeddings[pool]

    def pool_positions(self, pool: np.ndarray, ids: list[str]) -> np.ndarray:
        """Places in `pool` (m,) of those of `ids` that are in it."""
        rows = self.positions(ids)
        return np.searchsorted(pool, rows[np.isin(rows, pool)])

    def _asked_file(self, track: str) -> Path:
        if not track or not all(letter.isalnum() or letter in "-_." for letter in track) or track.startswith("."):
            raise UserError(f"track name {track!r} is not allowed; use letters, digits, '-', '_' and '.'")
        return self.folder / "asked" / f"{track}.json"


def checked_digest(digest: str) -> str:
    """`digest` if it can be one of an encoder. It names files of the site: a server must not name others with it."""
    if not re.fullmatch("[0-9a-f]{1,64}", digest):
        raise UserError(f"encoder digest {digest[:80]!r} is not allowed; send up to 64 hexadecimal digits")
    return digest


def open_site(folder: Path | str) -> Site:
    """The site in `folder`, kept open between messages of one process as long as its settings file does not change."""
    file = Path(folder) / SETTINGS
    try:
        stat = file.stat()
    except OSError as error:
        raise UserError(f"no site at {folder}: {error.strerror}; make one first") from None
    return _open(file.parent.resolve(), stat.st_mtime_ns, stat.st_ino)


@lru_cache(maxsize=64)
def _open(folder: Path, _mtime: int, _inode: int) -> Site:
    return Site(folder, read_settings(folder))


def read_known_labels(path: str) -> dict[str, str]:
    """id -> label text from a CSV with the columns id,label (labels known before the first selection)."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            if not rows.fieldnames or "id" not in rows.fieldnames or "label" not in rows.fieldnames:
                raise UserError(f"{path} needs the columns id,label in its first line; found {rows.fieldnames}")
            return {row["id"]: row["label"] for row in rows}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read known labels {path}: {error}") from None
