"""read(): an image set in any supported format, decoded once into a cache folder and from then on only opened."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial as partial_call
from pathlib import Path

import numpy as np

from cofal.data.choosing import Choice, choose
from cofal.data.decoding import decode_into
from cofal.data.imageset import ImageSet
from cofal.data.listing import Finding
from cofal.data.npyfile import NpyWriter
from cofal.data.settings import DataSettings
from cofal.errors import UserError
from cofal.files import write_fault
from cofal.progress import progress

CACHE_VERSION = 1  # raised when the same source would decode to something else


def read(settings: DataSettings, cache: Path) -> tuple[ImageSet, ImageSet]:
    """The training and the test set of `settings`.

    The first call decodes into `cache`/KEY/train and test, where KEY stands for the settings and the paths, sizes and
    modification times of the source files; later calls open the memmaps. Two processes that ask at once decode once.
    """
    finding = importlib.import_module(f"cofal.data.formats.{settings.source}").find(settings)
    folder = Path(cache) / _key(settings, finding)
    if not folder.is_dir():
        with _alone_in(Path(cache)):
            if not folder.is_dir():
                _build(finding, settings, folder)
    return ImageSet.open(folder / "train"), ImageSet.open(folder / "test")


def _key(settings: DataSettings, finding: Finding) -> str:
    text = json.dumps([CACHE_VERSION, settings.model_dump(), [_identity(path) for path in finding.files]])
    return f"{settings.source}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _identity(path: Path) -> tuple[str, int, int]:
    try:
        stat = path.stat()
    except OSError:  # a dangling link: a broken image, to be named or skipped when it is decoded
        return str(path.absolute()), -1, -1
    return str(path.absolute()), stat.st_size, stat.st_mtime_ns


@contextmanager
def _alone_in(cache: Path) -> Iterator[None]:
    """One process at a time may build in `cache`; the system frees the lock of a killed one."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / ".lock", "w")  # noqa: SIM115 - closed below
    except OSError as error:
        raise write_fault(cache, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(finding: Finding, settings: DataSettings, folder: Path) -> None:
    """Decode into a folder beside `folder` and rename it when both splits are whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    try:
        train, test, classes = choose(finding.load(), settings)
        decode_sets([train, test], [partial / "train", partial / "test"], classes, settings)
        partial.replace(folder)
    except OSError as error:
        raise write_fault(folder, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def decode_sets(choices: list[Choice], folders: list[Path], classes: list[str], settings: DataSettings) -> None:
    """Decode each choice into its folder as an ImageSet. All sets get one image size and one number of channels."""
    for folder in folders:
        folder.mkdir(parents=True)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(NpyWriter(folder / "images.npy", len(choice.rows)))
            for choice, folder in zip(choices, folders)
        ]
        bars = stack.enter_context(progress())
        first = None  # the first image decoded decides the size of all, in every set
        kept = []
        for choice, writer, folder in zip(choices, writers, folders):
            bar = bars.add_task(f"decoding {folder.name} images", total=len(choice.rows), note="")
            good, first = decode_into(writer, choice, settings, first, partial_call(bars.advance, bar))
            if not len(good):
                raise UserError(f"none of the {len(choice.rows)} images of {choice.listing.name} can be read")
            kept.append(good)
        if {writer.shape[2] for writer in writers if writer.shape} == {1, 3}:
            for writer in writers:
                if writer.shape and writer.shape[2] == 1:
                    writer.widen()
        for writer in writers:
            writer.finish()
    for choice, writer, rows, folder in zip(choices, writers, kept, folders):
        skipped = len(choice.rows) - len(rows)
        _complete(folder, writer, Choice(choice.listing, rows), classes, skipped)


def _complete(folder: Path, writer: NpyWriter, choice: Choice, classes: list[str], skipped: int) -> None:
    listing, rows = choice.listing, choice.rows
    images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    groups = None if listing.groups is None else [listing.groups[row] for row in rows]
    ids = [listing.ids[row] for row in rows]
    made = ImageSet.of(images, ids, listing.labels[rows], classes, groups, skipped=skipped, pixel_hashes=writer.hashes)
    made.save_meta(folder)
