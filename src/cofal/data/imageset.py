"""ImageSet: decoded images with stable ids and labels, its digest, and its form on disk."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cofal.errors import UserError
from cofal.files import atomic, read_json, write_fault, write_json, write_npy

META_VERSION = 1
_IN_MEMORY = 256 << 20  # bytes; a larger gathered subset lives in a temporary file instead of in memory
_COPY_STEP = 16 << 20  # bytes copied at a time


@dataclass(frozen=True, eq=False)
class ImageSet:
    """n decoded images with stable ids; labels where known. `ImageSet.of` makes one and computes its digest."""

    images: np.ndarray  # (n, h, w, c) uint8, c = 1 or 3; usually a read-only memmap
    ids: list[str]  # n stable, unique strings
    labels: np.ndarray  # (n,) int64, -1 where unknown
    classes: list[str]  # class names; labels index into it
    groups: list[str] | None  # value of the grouping column per image (hospital, device), for the by-column split
    digest: str  # sha256 over images, ids, labels and classes: same data, same digest, on any machine
    skipped: int = 0  # broken files left out (skip_bad)
    pixel_hashes: np.ndarray | None = field(
        default=None, repr=False
    )  # (n, 32) uint8, so that a subset's digest is cheap

    @classmethod
    def of(
        cls,
        images: np.ndarray,
        ids: Sequence[str],
        labels: np.ndarray,
        classes: Sequence[str],
        groups: Sequence[str] | None = None,
        *,
        skipped: int = 0,
        pixel_hashes: np.ndarray | None = None,
    ) -> ImageSet:
        """A checked set with its digest. `images` (n, h, w, c) uint8, `labels` (n,) integers with -1 for unknown."""
        labels = np.asarray(labels, dtype=np.int64)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
            raise UserError(f"images must be (n, h, w, 1 or 3) uint8, not {images.shape} {images.dtype}")
        if not len(images) == len(ids) == len(labels) == (len(ids) if groups is None else len(groups)):
            raise UserError(f"{len(images)} images, {len(ids)} ids and {len(labels)} labels do not match in number")
        if len(set(ids)) != len(ids):
            raise UserError("image ids are not unique; each image needs an id of its own")
        if len(labels) and not -1 <= labels.min() <= labels.max() < len(classes):
            raise UserError(f"labels run from {labels.min()} to {labels.max()} but there are {len(classes)} classes")
        if pixel_hashes is None:
            pixel_hashes = hash_pixels(images)
        digest = _digest(images.shape[1:], list(ids), labels, list(classes), pixel_hashes)
        groups = None if groups is None else list(groups)
        return cls(images, list(ids), labels, list(classes), groups, digest, skipped, pixel_hashes)

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, rows: np.ndarray) -> ImageSet:
        """The images at positions `rows` (m,), in that order, as a set of its own.

        A run of neighbouring rows is a view. Any other choice is copied: into memory up to 256 MB, above that into a
        temporary file beside the set, which vanishes with the array; so `images` is always a plain array and fits.
        """
        rows = np.asarray(rows, dtype=np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise UserError(f"rows run from {rows.min()} to {rows.max()} in a set of {len(self)} images")
        return ImageSet.of(
            _gather(self.images, rows),
            [self.ids[row] for row in rows],
            self.labels[rows],
            self.classes,
            None if self.groups is None else [self.groups[row] for row in rows],
            pixel_hashes=None if self.pixel_hashes is None else self.pixel_hashes[rows],
        )

    def save(self, folder: Path) -> None:
        """Write images.npy, hashes.npy and, last, meta.json, without which the folder does not count as a set."""
        folder = Path(folder)
        with atomic(folder / "images.npy") as temporary, open(temporary, "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": self.images.shape}
            np.lib.format.write_array_header_1_0(file, header)
            for part in _parts(self.images):
                file.write(np.ascontiguousarray(part).data)
        self.save_meta(folder)

    def save_meta(self, folder: Path) -> None:
        """Complete a folder whose images.npy is already written."""
        hashes = hash_pixels(self.images) if self.pixel_hashes is None else self.pixel_hashes
        write_npy(folder / "hashes.npy", hashes)
        meta = {
            "version": META_VERSION,
            "digest": self.digest,
            "skipped": self.skipped,
            "shape": list(self.images.shape),
        }
        meta |= {"classes": self.classes, "ids": self.ids, "labels": self.labels.tolist(), "groups": self.groups}
        write_json(folder / "meta.json", meta)

    @classmethod
    def open(cls, folder: Path) -> ImageSet:
        """The set saved in `folder`, its images a read-only memmap; a damaged or incomplete folder names itself."""
        folder = Path(folder)
        if not (folder / "meta.json").is_file():
            raise UserError(f"{folder} is not a complete image set (no meta.json); remove it and run the command again")
        meta = read_json(folder / "meta.json")
        try:
            images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
            hashes = np.load(folder / "hashes.npy", allow_pickle=False)
            if meta["version"] != META_VERSION or list(images.shape) != meta["shape"]:
                raise ValueError("version or shape differs")
            labels = np.asarray(meta["labels"], dtype=np.int64)
            found = cls.of(
                images,
                meta["ids"],
                labels,
                meta["classes"],
                meta["groups"],
                skipped=meta["skipped"],
                pixel_hashes=hashes,
            )
            if found.digest != meta["digest"]:
                raise ValueError("the digest does not match")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, UserError) as error:
            raise UserError(f"{folder} is damaged ({error}); remove it and run the command again") from error
        return found


def hash_pixels(images: np.ndarray) -> np.ndarray:
    """(n, 32) uint8: the sha256 of each image's pixels."""
    hashes = b"".join(hashlib.sha256(np.ascontiguousarray(image).data).digest() for image in images)
    return np.frombuffer(hashes, dtype=np.uint8).reshape(-1, 32)


def _digest(shape: Sequence[int], ids: list[str], labels: np.ndarray, classes: list[str], hashes: np.ndarray) -> str:
    sha = hashlib.sha256(json.dumps([list(shape), classes, ids]).encode())
    sha.update(labels.astype("<i8").tobytes())
    sha.update(np.ascontiguousarray(hashes).tobytes())
    return sha.hexdigest()


def _parts(images: np.ndarray, rows: np.ndarray | None = None) -> Iterator[np.ndarray]:
    """The images (or those at `rows`), some megabytes at a time."""
    step = max(1, _COPY_STEP // max(1, int(np.prod(images.shape[1:]))))
    for begin in range(0, len(images) if rows is None else len(rows), step):
        yield images[begin : begin + step] if rows is None else images[rows[begin : begin + step]]


def _gather(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return images[rows[0] : rows[0] + len(rows)]
    size = len(rows) * int(np.prod(images.shape[1:]))
    if size <= _IN_MEMORY:
        return np.asarray(images[rows])
    source = getattr(images, "filename", None)
    folder = Path(source).parent if source else Path(tempfile.gettempdir())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for part in _parts(images, rows):
                file.write(np.ascontiguousarray(part).data)
            file.flush()
            return np.memmap(file, dtype=np.uint8, mode="r", shape=(len(rows), *images.shape[1:]))
    except OSError as error:
        raise write_fault(folder, error) from error
