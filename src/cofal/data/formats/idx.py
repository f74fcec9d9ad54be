"""MNIST's IDX files, packed or not: a header with the sizes, then raw bytes; a size that cannot be true is refused."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from PIL import Image

from cofal.data.labels import index_labels
from cofal.data.listing import Block, Finding, Listing, Source, existing, no_column, numbered
from cofal.data.settings import DataSettings
from cofal.errors import UserError

_UNSIGNED_BYTE = 8
_DEFLATE_RATIO = 1032  # no gzip file holds more than this many times its own size
_BLOCK_BYTES = 8 << 20


def find(settings: DataSettings) -> Finding:
    no_column(settings)
    train = _images_file(existing(settings.path, settings), "train")
    if settings.test_path:
        test: Path | None = _images_file(existing(settings.test_path, settings, "test_path"), "t10k")
    else:
        test = next((file for mark in ("t10k", "test") if (file := _twin(train, "train", mark))), None)
    splits = [(images, _labels_file(images)) for images in (train, test) if images is not None]
    return Finding([file for pair in splits for file in pair], lambda: _load(splits))


def _images_file(path: Path, mark: str) -> Path:
    """`path` itself, or the one file of images in it whose name contains `mark`."""
    if path.is_file():
        return path
    named = {file.name.removesuffix(".gz"): file for file in sorted(path.iterdir(), reverse=True)}  # unpacked wins
    found = [file for name, file in sorted(named.items()) if "images" in name and "idx" in name and mark in name]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(f"{path} holds no {mark}-images-idx3-ubyte or {mark}-images-idx3-ubyte.gz; check the path")
    raise UserError(f"{path} holds several sets ({', '.join(file.name for file in found)}); give one of these files")


def _twin(file: Path, *changes: str) -> Path | None:
    """The file beside `file` whose name differs by the given (old, new) pairs, packed or not."""
    name = file.name.removesuffix(".gz")
    for old, new in zip(changes[::2], changes[1::2]):
        name = name.replace(old, new)
    candidates = (file.with_name(name), file.with_name(f"{name}.gz"))
    return next((found for found in candidates if found.is_file() and found != file), None)


def _labels_file(images: Path) -> Path:
    labels = _twin(images, "images", "labels", "idx3", "idx1", "idx4", "idx1")
    if labels is None:
        raise UserError(f"the labels of {images} are missing; put {images.name.replace('images', 'labels')} beside it")
    return labels


def _load(splits: list[tuple[Path, Path]]) -> Source:
    raw, shapes = [], []
    for images_file, labels_file in splits:
        with _opened(images_file) as (_, images_shape):
            shapes.append(_image_shape(images_file, images_shape))
        with _opened(labels_file) as (stream, labels_shape):
            if labels_shape != images_shape[:1]:
                raise UserError(
                    f"{labels_file} has labels {labels_shape} for {images_shape[0]} images in {images_file}"
                )
            raw.append((str(labels_file), np.frombuffer(_exactly(stream, labels_shape[0], labels_file), np.uint8)))
    labels, classes = index_labels(raw, None)
    prefixes = ("train", "test") if len(splits) > 1 else ("image",)
    listings = [
        Listing(str(file), numbered(prefix, len(own)), own, None, _blocks_of(file, shape))
        for prefix, (file, _), own, shape in zip(prefixes, splits, labels, shapes)
    ]
    return Source(classes, listings[0], listings[1] if len(listings) > 1 else None)


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, tuple[int, ...]]]:
    """The bytes after the header, and the shape it announces, once the file is known to be able to hold that much."""
    try:
        with cast(BinaryIO, gzip.open(file) if _is_packed(file) else open(file, "rb")) as stream:
            magic = _exactly(stream, 4, file)
            if magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE or not 1 <= magic[3] <= 4:
                raise UserError(f"{file} is not an IDX file of unsigned bytes (it begins with {magic.hex(' ')})")
            shape = struct.unpack(f">{magic[3]}I", _exactly(stream, 4 * magic[3], file))
            announced = 4 + 4 * len(shape) + int(np.prod(shape, dtype=object))
            size = file.stat().st_size
            if announced > size * _DEFLATE_RATIO if _is_packed(file) else announced != size:
                raise UserError(f"{file} announces {shape}, {announced} bytes, but has {size}; fetch it again")
            yield stream, shape
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {file}: {error}; fetch it again") from error


def _is_packed(file: Path) -> bool:
    return file.suffix == ".gz"


def _image_shape(file: Path, shape: tuple[int, ...]) -> tuple[int, int, int]:
    height, width, channels = (*shape[1:], 1)[:3] if len(shape) >= 3 else (0, 0, 0)
    if channels not in (1, 3) or not 0 < height * width <= (Image.MAX_IMAGE_PIXELS or height * width):
        raise UserError(f"{file} announces {shape}; images must be (n, h, w) or (n, h, w, 3)")
    if not shape[0]:
        raise UserError(f"{file} holds no images")
    return height, width, channels


def _exactly(stream: BinaryIO, size: int, file: Path) -> bytes:
    found = stream.read(size)
    if len(found) != size:
        raise UserError(f"{file} ends early; fetch it again")
    return found


def _blocks_of(file: Path, shape: tuple[int, int, int]) -> Callable[[np.ndarray], Iterator[Block]]:
    each = int(np.prod(shape))
    step = max(1, _BLOCK_BYTES // each)

    def blocks(rows: np.ndarray) -> Iterator[Block]:
        with _opened(file) as (stream, (count, *_)):
            for begin in range(0, count, step):
                end = min(begin + step, count)
                images = np.frombuffer(_exactly(stream, (end - begin) * each, file), np.uint8).reshape(-1, *shape)
                yield images[rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)] - begin]
            if stream.read(1):
                raise UserError(f"{file} is longer than its header says; fetch it again")

    return blocks
