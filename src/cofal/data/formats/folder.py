"""Image folders as ImageNet's: train/CLASS/*.jpg with test/ or val/ beside it, or CLASS/*.jpg, or unlabelled images."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cofal.data.listing import Block, Encoded, Finding, Listing, Source, existing
from cofal.data.settings import DataSettings
from cofal.errors import UserError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
LAYOUTS = ("class/group", "group/class")
_TEST_FOLDERS = ("test", "val", "valid", "validation")
_BATCH = 256


def find(settings: DataSettings) -> Finding:
    root = existing(settings.path, settings)
    if not root.is_dir():
        raise UserError(
            f'data.path = {settings.path!r} is a file; source = "folder" needs a folder with train/CLASS/*.jpg'
        )
    if settings.column and settings.column not in LAYOUTS and not settings.column.lower().endswith(".csv"):
        choices = '"class/group", "group/class" or the path of a CSV file with the columns path,group'
        raise UserError(f"column = {settings.column!r}: for a folder give {choices}")
    train = root / "train" if (root / "train").is_dir() else root
    test = existing(settings.test_path, settings, "test_path") if settings.test_path else None
    if test is None and train != root:
        test = _test_folder(root)
    folders = [train] if test is None else [train, test]
    files = [images_below(folder) for folder in folders]
    for folder, found in zip(folders, files):
        if not found:
            raise UserError(f"{folder} holds no image ({', '.join(ENDINGS)}); check data.path")
    table = [Path(settings.column).expanduser()] if settings.column.lower().endswith(".csv") else []
    if table and not table[0].is_file():
        raise UserError(f"column = {settings.column!r} does not exist; give a CSV file with the columns path,group")
    return Finding(table + [file for found in files for file in found], lambda: _load(settings, root, folders, files))


def _test_folder(root: Path) -> Path | None:
    """The first test folder with classes: ImageNet's own test images have no labels, its val images do."""
    there = [root / name for name in _TEST_FOLDERS if (root / name).is_dir()]
    sorted_by_class = [folder for folder in there if any(child.is_dir() for child in folder.iterdir())]
    return next(iter(sorted_by_class or there), None)


def images_below(folder: Path) -> list[Path]:
    """All images below `folder`, in the order of their names; hidden files and folders are left out, links followed."""

    def unreadable(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename}: {error.strerror}")

    found = []
    visited = set()  # a link to a folder above would lead round in circles
    for base, folders, names in os.walk(folder, followlinks=True, onerror=unreadable):
        visited.add(Path(base).resolve())
        folders[:] = [
            name for name in folders if not name.startswith(".") and Path(base, name).resolve() not in visited
        ]
        found += [Path(base, name) for name in names if not name.startswith(".") and name.lower().endswith(ENDINGS)]
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _load(settings: DataSettings, root: Path, folders: list[Path], files: list[list[Path]]) -> Source:
    class_level = 1 if settings.column == "group/class" else 0
    names = [[_part(path, folder, class_level) for path in found] for folder, found in zip(folders, files)]
    classes = sorted({name for split in names for name in split if name})
    number = {name: position for position, name in enumerate(classes)} | {"": -1}
    # An id is the path below the data folder, so that it is the same wherever that folder lies.
    bases = [root if folder.is_relative_to(root) else folder.parent for folder in folders]
    ids = [[path.relative_to(base).as_posix() for path in found] for base, found in zip(bases, files)]
    listings = []
    for position, folder in enumerate(folders):
        labels = np.array([number[name] for name in names[position]], dtype=np.int64)
        groups = _groups(settings, folder, files[position], ids[position]) if settings.column else None
        listings.append(Listing(str(folder), ids[position], labels, groups, blocks_of(files[position])))
    return Source(classes, listings[0], listings[1] if len(listings) > 1 else None)


def _part(path: Path, folder: Path, level: int) -> str:
    """The folder at `level` between `folder` and the image, or "" where the image lies higher."""
    parts = path.relative_to(folder).parts[:-1]
    return parts[level] if len(parts) > level else ""


def _groups(settings: DataSettings, folder: Path, files: list[Path], ids: list[str]) -> list[str]:
    if settings.column in LAYOUTS:
        level = LAYOUTS.index("group/class") - LAYOUTS.index(settings.column)  # 0 for group/class, 1 for class/group
        groups = [_part(path, folder, level) for path in files]
        remedy = f"column = {settings.column!r} expects {folder.name}/{settings.column.upper()}/image"
    else:
        table = _read_groups(Path(settings.column).expanduser())
        groups = [table.get(id, "") for id in ids]
        remedy = f"add it to {settings.column}"
    for id, group in zip(ids, groups):
        if not group:
            raise UserError(f"image {id} has no group; {remedy}")
    return groups


def _read_groups(table: Path) -> dict[str, str]:
    try:
        with open(table, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"path", "group"} <= set(reader.fieldnames or ()):
                raise UserError(f"{table} has the columns {reader.fieldnames}; it needs path and group")
            return {row["path"].replace("\\", "/"): row["group"] or "" for row in reader}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {table}: {error}") from error


def blocks_of(files: list[Path]) -> Callable[[np.ndarray], Iterator[Block]]:
    """How a listing of `files` fetches its images."""

    def blocks(rows: np.ndarray) -> Iterator[Block]:
        for begin in range(0, len(rows), _BATCH):
            yield [Encoded(str(files[row]), files[row]) for row in rows[begin : begin + _BATCH]]

    return blocks
