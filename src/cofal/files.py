"""Writing files so that a reader sees the old content or the new, never a part: temporary name, then rename.

A log grows by whole lines instead; what a killed writer left of one is no line.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cofal.errors import EnvironmentFault, UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_TAIL = 1 << 12  # bytes read at a time when looking for the end of the last line


def write_fault(path: Path, error: OSError) -> UserError | EnvironmentFault:
    """The failure to raise for `error`: a full disk is the machine's fault, a bad path the user's."""
    if error.errno in _FULL:
        return EnvironmentFault(
            f"cannot write {path}: {error.strerror}; free some space and run the same command again"
        )
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another place")


@contextmanager
def atomic(path: Path | str, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the block ends well and vanishes when it does not.

    `durable`: the content is on the disk before it takes the name, so that also a power cut leaves the old or the new.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if durable:
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise write_fault(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: Path | str, content: bytes) -> None:
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path | str, value: Any) -> None:
    """`value` as indented JSON; NaN is refused, since no other program reads it."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path | str) -> Any:
    """The value in a JSON file; a damaged file names itself."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); remove it and run the command again") from error


def write_npy(path: Path | str, array: np.ndarray) -> None:
    with atomic(path) as temporary, open(temporary, "wb") as file:
        np.save(file, array, allow_pickle=False)


def append_line(path: Path | str, text: str, durable: bool = True) -> None:
    """Add one line to a log by one write; any number of processes may do so at the same time.

    A part of a line that a killed process left at the end is cut off first. If this raises, no part is added.
    `durable`: return only when the line is on the disk, not merely with the operating system.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # let go of when the file is closed
            end = _end_of_lines(file.fileno())
            file.truncate(end)
            try:
                line = memoryview(text.encode() + b"\n")
                while line:  # once, but where the disk is nearly full
                    line = line[file.write(line) :]
                if durable:
                    os.fsync(file.fileno())
                    if end == 0:  # a new file: its name must survive as well
                        sync_folder(path.parent)
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        raise write_fault(path, error) from error


def read_lines(path: Path | str, start: int = 0) -> bytes:
    """The whole lines of a log from byte `start` on, with their ends."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            content = file.read()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return content[: content.rfind(b"\n") + 1]


def _end_of_lines(file: int) -> int:
    """Offset behind the last whole line."""
    end = os.fstat(file).st_size
    while end > 0:
        begin = max(0, end - _TAIL)
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def sync_folder(folder: Path) -> None:
    """Have the names of the files in `folder` on the disk, as fsync does for their content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
