"""What a format module hands to the reader: the files it found, and each split's ids and labels, not yet its pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cofal.data.settings import DataSettings
from cofal.errors import UserError


@dataclass(frozen=True)
class Encoded:
    """One image still in its file format; `name` is what an error calls it."""

    name: str
    content: bytes | Path


Block = np.ndarray | list[Encoded]  # (m, h, w, c) uint8, or m encoded images


@dataclass(frozen=True)
class Listing:
    """One split of a source: n images that can be fetched, in parts, by position."""

    name: str  # what an error calls the split
    ids: list[str]
    labels: np.ndarray  # (n,) int64, -1 where unknown
    groups: list[str] | None
    blocks: Callable[[np.ndarray], Iterator[Block]]  # the images at the given ascending positions, in that order


@dataclass(frozen=True)
class Source:
    """All splits of a source; `test` is None where the source has none."""

    classes: list[str]
    train: Listing
    test: Listing | None


@dataclass(frozen=True)
class Finding:
    """The files a source consists of (they identify it in the cache), and the function that lists their images."""

    files: list[Path]
    load: Callable[[], Source]


def numbered(prefix: str, count: int) -> list[str]:
    """`count` ids such as train-00012; they depend on the position in the source alone."""
    return [f"{prefix}-{position:05d}" for position in range(count)]


def existing(path: str, settings: DataSettings, option: str = "path") -> Path:
    """`path` as a Path that is there; `option` is the setting it came from."""
    if not path:
        raise UserError(f'source = "{settings.source}" needs data.{option}: the file or folder to read')
    found = Path(path).expanduser()
    if not found.exists():
        raise UserError(f"data.{option} = {path!r} does not exist; give the file or folder that holds the images")
    return found


def reason(error: BaseException) -> str:
    """What went wrong, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def no_column(settings: DataSettings) -> None:
    """Refuse a grouping column for a format that has none."""
    if settings.column:
        raise UserError(
            f'column = {settings.column!r}: source = "{settings.source}" has no columns; use parquet, folder or npz'
        )
