"""Writing files so that a reader sees the old content or the new, never a part: temporary name, then rename.

A log grows by whole lines instead; what a killed writer left of one is no line. A short record that changes with every
message is written in place.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from cofal.errors import EnvironmentFault, UserError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_TEMPORARY = re.compile(r"\..*\.(\d+)-[0-9a-f]{8}\.tmp")
_TAIL = 1 << 12  # bytes read at a time when looking for the end of the last line


def write_fault(path: Path, error: OSError) -> UserError | EnvironmentFault:
    """The failure to raise for `error`: a full disk is the machine's fault, a bad path the user's."""
    if error.errno in _FULL:
        return EnvironmentFault(
            f"cannot write {path}: {error.strerror}; free some space and run the same command again"
        )
    if error.errno == errno.EISDIR:
        return UserError(f"cannot write {path}: it is a folder; name a file in it")
    if error.errno == errno.EEXIST:
        return UserError(f"cannot write {path}: it exists and is no folder; choose another place")
    return UserError(f"cannot write {path}: {error.strerror or error}; choose another place")


def check_writable(path: Path) -> None:
    """Fail before the work, not after it, where `path` cannot be written."""
    try:
        parent = next(folder for folder in _place(path).absolute().parents if os.path.lexists(folder))
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{parent} is not a folder")
        if not os.access(parent, os.W_OK):
            raise PermissionError(errno.EACCES, f"you may not write in {parent}")
    except OSError as error:
        raise write_fault(path, error) from error


def _place(path: Path) -> Path:
    """Where a file called `path` is written: there, or where its links lead; raises OSError if other than a file is."""
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file")
    while path.is_symlink():
        if Path(os.path.realpath(path.parent)).is_relative_to("/proc"):  # /dev/stdout leads there, even of a file
            raise OSError(errno.EINVAL, "it is a stream of a process, not a file")
        path = path.parent / path.readlink()
    return path


@contextmanager
def atomic(path: Path | str, durable: bool = True) -> Iterator[Path]:
    """A temporary path beside `path` that takes its name when the block ends well and vanishes when it does not.

    A link stays and what it leads to is written; what is there and no regular file is refused.
    `durable`: the content is on the disk before it takes the name, so that also a power cut leaves the old or the new.
    """
    path = Path(path)
    try:
        place = _place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_fault(path, error) from error
    temporary = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        if durable:
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
        temporary.replace(place)
    except OSError as error:
        raise write_fault(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(folder: Path, what: str, mode: int = 0o777) -> Iterator[None]:
    """Make `folder` for `what`, or take an empty one; where the block fails, all that was made is gone again."""
    missing: list[Path] = []
    try:
        missing = missing_folders(folder)
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        taken = any(folder.iterdir())
    except OSError as error:
        remove_empty(missing)
        raise write_fault(folder, error) from error
    if taken:
        raise UserError(f"{folder} is not empty; {what} is made once, choose a new folder")
    try:
        yield
    except BaseException as error:
        for entry in folder.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
        remove_empty(missing)
        if isinstance(error, OSError):
            raise write_fault(folder, error) from error
        raise


def missing_folders(folder: Path) -> list[Path]:
    """What must be made so that `folder` is there, itself first."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


def remove_empty(folders: list[Path]) -> None:
    """Remove those of `folders` that are empty, in this order."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def writer_of(path: Path) -> int | None:
    """The process that made `path` as a temporary one of `atomic`; None of a file that others made."""
    found = _TEMPORARY.fullmatch(path.name)
    return int(found[1]) if found else None


def write_text(path: Path | str, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: Path | str, content: bytes) -> None:
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path | str, value: Any) -> None:
    """`value` as indented JSON; NaN is refused, since no other program reads it."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def read_json(path: Path | str, remedy: str = "remove it and run the command again") -> Any:
    """The value in a JSON file; a damaged file names itself, and the `remedy` of whoever reads it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); {remedy}") from error


def write_npy(path: Path | str, array: np.ndarray) -> None:
    with atomic(path) as temporary, open(temporary, "wb") as file:
        np.save(file, array, allow_pickle=False)


def append_line(path: Path | str, text: str, durable: bool = True, mode: int = 0o666) -> None:
    """Add one line to a log by one write; any number of processes may do so at the same time.

    A part of a line that a killed process left at the end is cut off first. If this raises, no part is added.
    `durable`: return only when the line is on the disk, not merely with the operating system. `mode`: of a new file.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+", buffering=0, opener=lambda name, flags: os.open(name, flags, mode)) as file:
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


def overwrite(path: Path | str, record: bytes) -> None:
    """Put a short record of a fixed length in the place of the one before; raises OSError.

    One write within one page: a kill leaves the old record or the new one, at a hundredth of the cost of a rename. For
    what is written with every message; it is not waited for, so a power cut may leave the old one, or none.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(file, record, 0) != len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if os.fstat(file).st_size > len(record):  # something else stood there
            os.ftruncate(file, len(record))
    finally:
        os.close(file)


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
