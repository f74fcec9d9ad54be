"""Small image sets in every format, for the tests of this folder."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def pictures(count: int, size: int = 6, channels: int = 3, seed: int = 0) -> np.ndarray:
    """(count, size, size, channels) uint8 noise."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(stream, "PNG")
    return stream.getvalue()


def write_parquet(
    file: Path,
    images: list[bytes],
    labels: list,
    paths: list[str | None] | None = None,
    *,
    image="img",
    label="label",
    metadata: dict[str, str] | None = None,
    row_group_size: int | None = None,
    **columns,
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    structs = [{"bytes": content, "path": path} for content, path in zip(images, paths or [None] * len(images))]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image: pa.array(structs, kind), label: labels, **columns})
    pq.write_table(table.replace_schema_metadata(metadata), file, row_group_size=row_group_size)


def write_idx(file: Path, array: np.ndarray) -> None:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_folder(root: Path, images: dict[str, np.ndarray]) -> None:
    for name, image in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(image))


def python2_pickle(batch: dict[str, object]) -> bytes:
    """The opcodes that Python 2's cPickle wrote for CIFAR (protocol 2, byte strings for text and array contents)."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value  # BINSTRING

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def write(value: object) -> bytes:
        if isinstance(value, np.ndarray):
            dtype = b"cnumpy\ndtype\n(" + text(b"u1") + integer(0) + integer(1) + b"tR"
            dtype += b"(" + integer(3) + text(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
            empty = (
                b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + integer(0) + b"t" + text(b"b") + b"tR"
            )
            shape = b"(" + b"".join(integer(side) for side in value.shape) + b"t"
            return empty + b"(" + integer(1) + shape + dtype + b"\x89" + text(value.tobytes()) + b"tb"
        if isinstance(value, list):
            return b"](" + b"".join(write(item) for item in value) + b"e"
        return integer(value) if isinstance(value, int) else text(str(value).encode())

    items = b"".join(text(key.encode()) + write(value) for key, value in batch.items())
    return b"\x80\x02}(" + items + b"u."


def write_cifar10(folder: Path, images: np.ndarray, labels: list[int], *, style: str = "python2") -> None:
    """`images` (6 m, 32, 32, 3) as five training batches and a test batch; style "python2" or a protocol."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, content: dict) -> None:
        written = python2_pickle(content) if style == "python2" else pickle.dumps(content, protocol=int(style))
        (folder / name).write_bytes(written)

    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    each = len(images) // 6
    for part, name in enumerate([f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]):
        here = slice(part * each, (part + 1) * each)
        write(name, {"data": np.ascontiguousarray(rows[here]), "labels": labels[here], "batch_label": name})
    write("batches.meta", {"label_names": [f"kind {number}" for number in range(10)], "num_cases_per_batch": each})
