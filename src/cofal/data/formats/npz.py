"""Arrays in an .npz: which names hold the images, how values become uint8; read in a stream, never unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cofal.data.labels import index_labels, one_column
from cofal.data.listing import Block, Finding, Listing, Source, existing, numbered
from cofal.data.settings import DataSettings
from cofal.errors import UserError

_DEFLATE_RATIO = 1032  # no deflated member holds more than this many times its packed size
_BLOCK_BYTES = 8 << 20
_SMALL = 1 << 30  # bytes; labels and arrays in Fortran order are read whole up to this
_NAMES = [  # (training images, training labels, test images, test labels)
    ("x_train", "y_train", "x_test", "y_test"),  # Keras
    ("train_images", "train_labels", "test_images", "test_labels"),  # MedMNIST
    ("images", "labels", "", ""),
    ("x", "y", "", ""),
    ("X", "y", "", ""),
    ("data", "labels", "", ""),
]


@dataclass(frozen=True)
class Member:
    """One array of the archive, by its header."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran: bool

    @property
    def where(self) -> str:
        return f"{self.file} array {self.name}"


def find(settings: DataSettings) -> Finding:
    files = [existing(settings.path, settings)]
    if settings.test_path:
        files.append(existing(settings.test_path, settings, "test_path"))
    for file in files:
        if not zipfile.is_zipfile(file):
            raise UserError(f"{file} is not an .npz archive; save the arrays with numpy.savez")
    return Finding(files, lambda: _load(settings, files))


def _load(settings: DataSettings, files: list[Path]) -> Source:
    found = [_members(file) for file in files]
    splits = _splits(found[0], files[0])
    if len(found) > 1:
        splits = [splits[0], _splits(found[1], files[1])[-1]]
    raw = []
    for images, labels in splits:
        values = np.full(images.shape[0], -1) if labels is None else one_column(labels.where, _whole(labels))
        if len(values) != images.shape[0]:
            raise UserError(f"{images.where} has {images.shape[0]} images but {len(values)} labels")
        if not len(values):
            raise UserError(f"{images.where} holds no images")
        raw.append((images.where if labels is None else labels.where, values))
    names = [str(name) for name in _whole(found[0]["classes"]).ravel()] if "classes" in found[0] else None
    labels_of, classes = index_labels(raw, names)
    prefixes = ("train", "test") if len(splits) > 1 else ("image",)
    sources = (found[0], found[-1])
    listings = [
        Listing(
            images.where, numbered(prefix, len(own)), own, _groups(settings, images, source, prefix), _blocks_of(images)
        )
        for prefix, (images, _), own, source in zip(prefixes, splits, labels_of, sources)
    ]
    return Source(classes, listings[0], listings[1] if len(listings) > 1 else None)


def _splits(members: dict[str, Member], file: Path) -> list[tuple[Member, Member | None]]:
    """(images, labels) of the training and, where there is one, the test split."""
    for train_images, train_labels, test_images, test_labels in _NAMES:
        if train_images in members:
            splits = [(members[train_images], members.get(train_labels))]
            if test_images in members:
                splits.append((members[test_images], members.get(test_labels)))
            return splits
    expected = "; ".join(", ".join(name for name in names if name) for names in _NAMES[:3])
    raise UserError(f"{file} holds {', '.join(sorted(members)) or 'no arrays'}; expected one of: {expected}")


def _groups(settings: DataSettings, images: Member, members: dict[str, Member], prefix: str) -> list[str] | None:
    if not settings.column:
        return None
    for name in (f"{prefix}_{settings.column}", f"{settings.column}_{prefix}", settings.column):
        if name in members and members[name].shape[:1] == images.shape[:1]:
            return [str(value) for value in one_column(members[name].where, _whole(members[name]))]
    raise UserError(
        f"{images.file} has no array {settings.column!r} with {images.shape[0]} values; it holds {', '.join(members)}"
    )


@contextmanager
def _reading(file: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"cannot read {file}: {error}; save it again with numpy.savez") from error


def _members(file: Path) -> dict[str, Member]:
    """The arrays of the archive; a header must agree with the size the archive states, and that with what is packed."""
    members = {}
    with _reading(file) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with archive.open(info) as stream:
                shape, fortran, dtype = _header(stream)
                content = info.file_size - stream.tell()
            member = Member(file, info.filename.removesuffix(".npy"), shape, dtype, fortran)
            if dtype.hasobject:
                raise UserError(
                    f"{member.where} holds Python objects, which could run code; save plain numbers or text"
                )
            announced = int(np.prod(shape, dtype=object)) * dtype.itemsize
            if announced != content or info.file_size > max(1, info.compress_size) * _DEFLATE_RATIO:
                raise UserError(
                    f"{member.where} announces {announced} bytes but the archive cannot hold them; save it again"
                )
            members[member.name] = member
    return members


def _header(stream) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)


def _whole(member: Member) -> np.ndarray:
    """A small array, read at once."""
    size = int(np.prod(member.shape, dtype=object)) * member.dtype.itemsize
    if size > _SMALL:
        raise UserError(
            f"{member.where} has {size / 1e9:.1f} GB in one piece; save it in C order, labels as one number each"
        )
    with _reading(member.file) as archive, archive.open(f"{member.name}.npy") as stream:
        _header(stream)
        values = np.frombuffer(stream.read(size), member.dtype)
        return values.reshape(member.shape, order="F" if member.fortran else "C")


def _parts(member: Member) -> Iterator[tuple[int, np.ndarray]]:
    """The array some megabytes at a time, each part with the number of its first row."""
    if member.fortran:
        yield 0, _whole(member)
        return
    each = int(np.prod(member.shape[1:], dtype=object)) * member.dtype.itemsize
    step = max(1, _BLOCK_BYTES // max(1, each))
    with _reading(member.file) as archive, archive.open(f"{member.name}.npy") as stream:
        _header(stream)
        for begin in range(0, member.shape[0], step):
            rows = min(step, member.shape[0] - begin)
            yield begin, np.frombuffer(stream.read(rows * each), member.dtype).reshape(rows, *member.shape[1:])


def _blocks_of(member: Member) -> Callable[[np.ndarray], Iterator[Block]]:
    """The array's images as (m, h, w, c) uint8."""
    order = _axes(member)

    def blocks(rows: np.ndarray) -> Iterator[Block]:
        to_bytes = _to_bytes(member)
        for begin, part in _parts(member):
            wanted = rows[np.searchsorted(rows, begin) : np.searchsorted(rows, begin + len(part))] - begin
            images = to_bytes(part[wanted])
            yield (images[..., None] if images.ndim == 3 else images).transpose(order)

    return blocks


def _axes(member: Member) -> tuple[int, int, int, int]:
    shape = member.shape if len(member.shape) == 4 else (*member.shape, 1)
    if len(shape) == 4 and min(shape[1:]) > 0:
        if shape[3] in (1, 3):
            return 0, 1, 2, 3
        if shape[1] in (1, 3):
            return 0, 2, 3, 1  # channels first, as torch has them
    raise UserError(
        f"{member.where} has the shape {member.shape}; images must be (n, h, w), (n, h, w, 3) or (n, 3, h, w)"
    )


def _to_bytes(member: Member) -> Callable[[np.ndarray], np.ndarray]:
    """How the array's values become 0 to 255, judged by all of them."""
    kind = member.dtype.kind
    if member.dtype == np.uint8:
        return lambda values: values
    if kind == "b":
        return lambda values: values * np.uint8(255)
    if kind not in "iuf":
        raise UserError(f"{member.where} holds {member.dtype}; images must be numbers")
    low, high = _range(member)
    if kind == "f" and low >= 0 and high <= 1:
        return lambda values: np.rint(values.astype(np.float32) * 255).astype(np.uint8)
    if low >= 0 and high <= 255:
        return lambda values: np.rint(values).astype(np.uint8)
    if member.dtype.kind == "u" and member.dtype.itemsize == 2:
        return lambda values: (values >> 8).astype(np.uint8)
    raise UserError(f"{member.where} has values from {low:g} to {high:g}; images must lie in [0, 1] or [0, 255]")


def _range(member: Member) -> tuple[float, float]:
    low, high = np.inf, -np.inf
    for begin, part in _parts(member):
        if member.dtype.kind == "f" and not np.isfinite(part).all():
            row = begin + int(np.flatnonzero(~np.isfinite(part.reshape(len(part), -1)).all(axis=1))[0])
            raise UserError(f"{member.where} row {row} holds NaN or infinity; repair or remove that image")
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    return low, high
