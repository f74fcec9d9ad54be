"""Files of a site that only its owner may read, and that must be on the disk before an answer leaves."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cofal.files import atomic, read_json, sync_folder, write_fault


def write_private(path: Path, value: Any) -> None:
    """`value` as JSON, mode 0600 from the first byte on; when this returns, it survives a kill and a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file, allow_nan=False)
    sync_folder(path.parent)  # without it, a power cut could undo the rename


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time in the block; the lock of a killed process opens by itself."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise write_fault(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def settle(path: Path, value: Any, remedy: str = "restore it from a backup") -> Any:
    """Record `value` once: the first value written at `path` stands for ever, and is returned to every later call.

    `remedy`: what to do about a damaged file; to remove it would be to record another value.
    """
    with locked(path.parent):
        if path.exists():
            return read_json(path, remedy)
        write_private(path, value)
        return value
