"""Parquet files as on the Hugging Face hub: a column of encoded images, one of labels, one file or several a split."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cofal.data.labels import index_labels, one_column
from cofal.data.listing import Block, Encoded, Finding, Listing, Source, existing, numbered, reason
from cofal.data.settings import DataSettings
from cofal.errors import UserError

IMAGE_COLUMNS = ("img", "image", "images", "png", "jpg", "jpeg", "bytes")
LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target", "y", "cls")
_TEST_NAMES = ("test", "validation", "valid", "val", "dev")
_BATCH_BYTES = 4 << 20  # encoded images in memory at a time


def find(settings: DataSettings) -> Finding:
    path = existing(settings.path, settings)
    train, test = _shards(path)
    if settings.test_path:
        test_train, test = _shards(existing(settings.test_path, settings, "test_path"))
        test = test or test_train
    return Finding(train + test, lambda: _load(settings, train, test))


def _shards(path: Path) -> tuple[list[Path], list[Path]]:
    """The training and the test files at `path`; files whose names tell no split all count as training."""
    if path.is_file():
        sibling = path.with_name(path.name.replace("train", "test", 1))
        return [path], [sibling] if "train" in path.name and sibling.is_file() else []
    # the hub keeps data/train-00000-of-00002.parquet, its converter default/train/0000.parquet
    found = next((found for depth in ("", "*/", "*/*/") if (found := list(path.glob(f"{depth}*.parquet")))), [])
    files = sorted(file for file in found if not file.name.startswith("."))
    if not files:
        raise UserError(f"{path} holds no .parquet file; give the folder with train*.parquet, or the file itself")
    words = {file: re.split(r"[-_./]", file.relative_to(path).as_posix().lower()) for file in files}
    train = [file for file in files if "train" in words[file]]
    if not train:
        return files, []
    tests = ([file for file in files if name in words[file]] for name in _TEST_NAMES)
    return train, next((found for found in tests if found), [])


@contextmanager
def _opened(file: Path) -> Iterator[pq.ParquetFile]:
    """A parquet file read in a stream; whatever is wrong with it names it."""
    try:
        with pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False) as opened:
            yield opened
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {reason(error)}; fetch it again") from error


def _load(settings: DataSettings, train: list[Path], test: list[Path]) -> Source:
    with _opened(train[0]) as file:
        schema = file.schema_arrow
    image_column = _column(schema, settings.image_column, IMAGE_COLUMNS, "image_column", train[0])
    label_column = None
    if settings.label_column != "none":
        label_column = _column(schema, settings.label_column, LABEL_COLUMNS, "label_column", train[0])
    columns = [image_column, *([label_column] if label_column else []), *([settings.column] if settings.column else [])]
    for files in (train, test):
        for shard in files:
            _check_columns(shard, columns)

    splits = [files for files in (train, test) if files]
    names = [str(files[0] if len(files) == 1 else files[0].parent) for files in splits]
    counts = [sum(_rows(shard) for shard in files) for files in splits]
    for name, count in zip(names, counts):
        if not count:
            raise UserError(f"{name} holds no images")
    classes: list[str] = []
    labels = [np.full(count, -1) for count in counts]
    if label_column:
        raw = [(f"{name} column {label_column}", _labels(files, label_column)) for name, files in zip(names, splits)]
        labels, classes = index_labels(raw, _class_names(schema, label_column))
    ids = _ids(splits, counts, schema, image_column)
    groups = [_groups(name, files, settings.column) if settings.column else None for name, files in zip(names, splits)]
    listings = [
        Listing(name, own_ids, own_labels, own_groups, _blocks_of(files, image_column))
        for name, own_ids, own_labels, own_groups, files in zip(names, ids, labels, groups, splits)
    ]
    return Source(classes, listings[0], listings[1] if len(listings) > 1 else None)


def _column(schema: pa.Schema, wanted: str, usual: tuple[str, ...], option: str, file: Path) -> str:
    for name in (wanted,) if wanted else usual:
        if name in schema.names:
            return name
    none = ' (or "none" for unlabelled images)' if option == "label_column" else ""
    what = f"no column {wanted!r}" if wanted else f"none of the columns {', '.join(usual)}"
    raise UserError(f"{file} has {what}; set {option} to one of {', '.join(schema.names)}{none}")


def _check_columns(file: Path, columns: list[str]) -> None:
    with _opened(file) as opened:
        missing = [name for name in columns if name not in opened.schema_arrow.names]
        if missing:
            raise UserError(
                f"{file} has no column {missing[0]!r}; its columns are {', '.join(opened.schema_arrow.names)}"
            )
        kind = opened.schema_arrow.field(columns[0]).type
    bytes_kind = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    if not (pa.types.is_binary(bytes_kind) or pa.types.is_large_binary(bytes_kind)):
        raise UserError(
            f"{file} column {columns[0]} holds {kind}, not encoded images; set image_column to one that does"
        )


def _rows(file: Path) -> int:
    with _opened(file) as opened:
        return opened.metadata.num_rows


def _values(files: list[Path], column: str) -> list[Any]:
    """All values of a column (or of one field of a struct column, as `img.path`), shard after shard."""
    found: list[Any] = []
    for file in files:
        with _opened(file) as opened:
            table = opened.read(columns=[column], use_threads=False)
            values = table.column(0)
            if "." in column and pa.types.is_struct(values.type):
                values = pa.chunked_array([chunk.field(0) for chunk in values.chunks])
            found += values.to_pylist()
    return found


def _groups(name: str, files: list[Path], column: str) -> list[str]:
    values = _values(files, column)
    if None in values:
        raise UserError(f"{name} row {values.index(None)} has no value in column {column}; fill it or drop the row")
    return [str(value) for value in values]


def _labels(files: list[Path], column: str) -> np.ndarray:
    values = _values(files, column)
    if any(isinstance(value, str) for value in values):
        return np.array(["" if value is None else str(value) for value in values], dtype=str)
    try:
        return one_column(f"{files[0]} column {column}", np.array([-1 if value is None else value for value in values]))
    except ValueError as error:  # lists of different lengths
        raise UserError(f"{files[0]} column {column} holds no plain labels; set label_column to another") from error


def _class_names(schema: pa.Schema, label_column: str) -> list[str] | None:
    """Class names from the schema's metadata: Hugging Face's ClassLabel, or a list under the key `classes`."""
    metadata = schema.metadata or {}
    if b"huggingface" in metadata:
        try:
            names = json.loads(metadata[b"huggingface"])["info"]["features"][label_column]["names"]
            return [str(name) for name in names]
        except (ValueError, KeyError, TypeError):
            pass  # a column that is no ClassLabel
    text = metadata.get(b"classes", b"").decode("utf-8", "replace").strip()
    if not text:
        return None
    if text.startswith("["):
        return [str(name) for name in json.loads(text)]
    if "\n" in text:
        return text.splitlines()
    names = re.split(r",(?! )", text)  # names such as "robin, American robin" hold a comma and a blank
    return names if len(names) > 1 else [name.strip() for name in text.split(",")]


def _ids(splits: list[list[Path]], counts: list[int], schema: pa.Schema, image_column: str) -> list[list[str]]:
    """The images' own paths where each has one and no two are alike, else numbers in the order of the file."""
    kind = schema.field(image_column).type
    if pa.types.is_struct(kind) and kind.get_field_index("path") >= 0:
        paths = [_values(files, f"{image_column}.path") for files in splits]
        every = [path for part in paths for path in part]
        if all(every) and len(set(every)) == len(every):
            return paths
    prefixes = ("train", "test") if len(splits) > 1 else ("image",)
    return [numbered(prefix, count) for prefix, count in zip(prefixes, counts)]


def _blocks_of(files: list[Path], column: str) -> Callable[[np.ndarray], Iterator[Block]]:
    def blocks(rows: np.ndarray) -> Iterator[Block]:
        start = 0  # of the row group, counted over all shards
        for file in files:
            with _opened(file) as opened:
                first = start
                for group in range(opened.num_row_groups):
                    end = start + opened.metadata.row_group(group).num_rows
                    wanted = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]
                    if len(wanted):
                        yield from _batches(opened, file, group, column, wanted - start, start - first)
                    start = end

    return blocks


def _batches(
    opened: pq.ParquetFile, file: Path, group: int, column: str, wanted: np.ndarray, before: int
) -> Iterator[list[Encoded]]:
    """The wanted rows of one row group; `before` rows of the file precede it."""
    start = 0
    group_size = opened.metadata.row_group(group)
    step = max(1, min(256, _BATCH_BYTES * group_size.num_rows // max(1, group_size.total_byte_size)))
    for batch in opened.iter_batches(step, row_groups=[group], columns=[column], use_threads=False):
        here = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + batch.num_rows)]
        images = batch.column(0)
        content = images.field("bytes") if pa.types.is_struct(images.type) else images
        yield [Encoded(f"{file} row {before + row}", content[int(row) - start].as_py() or b"") for row in here]
        start += batch.num_rows
