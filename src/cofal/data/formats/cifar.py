"""The original CIFAR-10 and CIFAR-100 python pickles, as the folder or the .tar.gz they come in."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cofal.data.labels import index_labels
from cofal.data.listing import Block, Finding, Listing, Source, existing, no_column, numbered, reason
from cofal.data.pickles import bytes_array, load_plain
from cofal.data.settings import DataSettings
from cofal.errors import UserError

_MOST_BYTES = 1 << 30  # of one pickle; CIFAR-100's largest has 155 MB


class Kind(NamedTuple):
    """The files and keys of one of the two sets."""

    train: list[str]
    test: str
    names: str
    label_key: str
    names_key: str

    @property
    def files(self) -> list[str]:
        return [*self.train, self.test, self.names]


_CIFAR10 = Kind([f"data_batch_{part}" for part in range(1, 6)], "test_batch", "batches.meta", "labels", "label_names")
_CIFAR100 = Kind(["train"], "test", "meta", "fine_labels", "fine_label_names")

Places = dict[str, str]  # file name -> path inside the archive or the folder, in the archive's order


def find(settings: DataSettings) -> Finding:
    no_column(settings)
    path = existing(settings.path, settings)
    places = _in_archive(path) if path.is_file() else _in_folder(path)
    kind = _CIFAR10 if "data_batch_1" in places else _CIFAR100
    missing = [name for name in kind.files if name not in places]
    if kind.train[0] in missing:
        raise UserError(
            f"{path} holds neither CIFAR-10's data_batch_1 nor CIFAR-100's train; give the folder or .tar.gz"
        )
    if missing:
        raise UserError(f"{path} lacks {missing[0]}; fetch the archive again")
    files = [path] if path.is_file() else [path / places[name] for name in kind.files]
    return Finding(files, lambda: _load(path, places, kind))


def _in_folder(path: Path) -> Places:
    inside = [path / name for name in ("cifar-10-batches-py", "cifar-100-python")]
    folder = next((child for child in inside if child.is_dir()), path)
    return {file.name: str(file.relative_to(path)) for file in folder.iterdir() if file.is_file()}


def _in_archive(path: Path) -> Places:
    with _archive(path) as archive:
        return {Path(member.name).name: member.name for member in archive if member.isfile()}


@contextmanager
def _archive(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path) as archive:
            yield archive
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a readable archive ({reason(error)}); fetch it again") from error


def _batches(path: Path, places: Places, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each named file's dictionary, with the name an error gives the file."""
    with ExitStack() as stack:
        archive = stack.enter_context(_archive(path)) if path.is_file() else None
        for name in names:
            where = f"{path}/{places[name]}"
            try:
                stream = open(where, "rb") if archive is None else archive.extractfile(places[name])  # noqa: SIM115
                assert stream is not None  # only plain files were listed
                with stream:
                    content = stream.read(_MOST_BYTES + 1)
            except OSError as error:
                raise UserError(f"cannot read {where}: {error}; fetch it again") from error
            if len(content) > _MOST_BYTES:
                raise UserError(f"{where} is larger than any CIFAR file; fetch the original")
            yield where, load_plain(content, where)


def _load(path: Path, places: Places, kind: Kind) -> Source:
    labels_of: dict[str, np.ndarray] = {}
    classes: list[str] = []
    in_order = [name for name in places if name in kind.files]  # the archive's order, so that one pass unpacks it
    for name, (where, batch) in zip(in_order, _batches(path, places, in_order)):
        if name == kind.names:
            classes = _class_names(batch, kind.names_key, where)
        else:
            labels_of[name] = _labels(batch, kind.label_key, where)
    splits = {"train": kind.train, "test": [kind.test]}
    raw = [(f"{path} {split}", np.concatenate([labels_of[name] for name in files])) for split, files in splits.items()]
    labels, classes = index_labels(raw, classes)
    train, test = (
        Listing(where, numbered(split, len(own)), own, None, _blocks_of(path, places, files))
        for (where, _), own, (split, files) in zip(raw, labels, splits.items())
    )
    return Source(classes, train, test)


def _class_names(batch: dict[str, Any], key: str, where: str) -> list[str]:
    names = batch.get(key)
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise UserError(f"{where} holds no list {key}; fetch the original file")
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]


def _labels(batch: dict[str, Any], key: str, where: str) -> np.ndarray:
    labels = batch.get(key)
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 1 << 31 for label in labels):
        raise UserError(f"{where} holds no list of numbers {key}; fetch the original file")
    if len(labels) != len(_pixels(batch, where)):
        raise UserError(
            f"{where} has {len(labels)} labels for {len(_pixels(batch, where))} images; fetch the original file"
        )
    return np.array(labels, dtype=np.int64)


def _pixels(batch: dict[str, Any], where: str) -> np.ndarray:
    """(n, 3072) uint8: the red, then the green, then the blue plane."""
    data = bytes_array(batch.get("data"), where)
    if data.shape[1] != 3072:
        raise UserError(
            f"{where}: rows of {data.shape[1]} bytes are not 32 x 32 colour images; fetch the original file"
        )
    return data


def _blocks_of(path: Path, places: Places, files: list[str]) -> Callable[[np.ndarray], Iterator[Block]]:
    def blocks(rows: np.ndarray) -> Iterator[Block]:
        start = 0
        for where, batch in _batches(path, places, files):
            data = _pixels(batch, where)
            wanted = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(data))] - start
            yield data[wanted].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            start += len(data)

    return blocks
