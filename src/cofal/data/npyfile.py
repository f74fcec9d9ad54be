"""A .npy file of images written row after row: the set may be larger than memory, its length is known last."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from cofal.errors import EnvironmentFault
from cofal.files import write_fault


class NpyWriter:
    """Appends (m, h, w, c) uint8 blocks to `path` and keeps each row's sha256.

    A file begun with grey images becomes a colour one when the first colour image arrives; from then on grey
    blocks are widened. Rows go out through `write`, never through a memmap: a full disk is then an error, not a crash.
    """

    def __init__(self, path: Path, expected: int) -> None:
        self.path = path
        self.expected = expected
        self.shape: tuple[int, int, int] | None = None  # (h, w, c), known with the first block
        self._hashes: list[bytes] = []
        self._file = open(path, "w+b")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def hashes(self) -> np.ndarray:
        """(n, 32) uint8: the sha256 of each row's pixels."""
        return np.frombuffer(b"".join(self._hashes), dtype=np.uint8).reshape(-1, 32)

    def append(self, block: np.ndarray) -> None:
        """Add (m, h, w, c) uint8 images; h and w are those of the first block."""
        if self.shape is None:
            self._begin(block.shape[1:])
        assert self.shape is not None
        if block.shape[-1] == 3 and self.shape[2] == 1:
            self.widen()
        elif block.shape[-1] == 1 and self.shape[2] == 3:
            block = np.repeat(block, 3, axis=-1)
        block = np.ascontiguousarray(block)
        self._hashes += [hashlib.sha256(row.data).digest() for row in block]
        self._write(block)

    def finish(self) -> None:
        """Put the true number of rows into the header and the file on the disk."""
        self._header(len(self))
        self._file.flush()
        os.fsync(self._file.fileno())

    def widen(self) -> None:
        """Turn the grey file into a colour one with equal channels, in place, from the last row to the first."""
        assert self.shape is not None
        height, width, _ = self.shape
        step = max(1, (8 << 20) // (height * width))
        start = self._header_size
        for end in range(len(self), 0, -step):
            begin = max(0, end - step)
            self._file.seek(start + begin * height * width)
            grey = np.frombuffer(self._file.read((end - begin) * height * width), np.uint8)
            colour = np.repeat(grey, 3).reshape(end - begin, -1)
            self._hashes[begin:end] = [hashlib.sha256(row.data).digest() for row in colour]
            self._file.seek(start + 3 * begin * height * width)
            self._write(colour)
        self.shape = (height, width, 3)
        self._header(len(self))
        self._file.seek(0, 2)

    def _begin(self, shape: tuple[int, ...]) -> None:
        height, width, channels = shape
        self.shape = (height, width, channels)
        needed, free = self.expected * height * width * channels, shutil.disk_usage(self.path.parent).free
        if needed > free:
            raise EnvironmentFault(
                f"the decoded images need {needed / 1e9:.1f} GB but {self.path.parent} has {free / 1e9:.1f} GB free; "
                "free some space, set limit or image_size, or choose another cache"
            )
        self._header(self.expected)

    def _header(self, rows: int) -> None:
        # numpy pads the header so that the first axis can grow to any length within the same number of bytes
        assert self.shape is not None
        self._file.seek(0)
        header = {"descr": "|u1", "fortran_order": False, "shape": (rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._header_size = self._file.tell()

    def _write(self, block: np.ndarray) -> None:
        try:
            self._file.write(block.data)
        except OSError as error:
            raise write_fault(self.path, error) from error
