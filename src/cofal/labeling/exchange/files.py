"""What the formats share: guarded reading, pictures for tools that need files, and the choice of a format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.files import atomic, write_fault
from cofal.labeling.merging import Incoming
from cofal.labeling.records import REASONS

LARGEST = 64 << 20  # bytes of a file that is read: more than a million lines, and in memory 15 times as many
NOBODY = "import"  # the annotator of answers that name none


@dataclass
class Read:
    """The answers of a file, and its entries that say nothing clear, each in one line."""

    answers: list[Incoming] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_text(path: Path) -> str:
    """The text of a file of at most `LARGEST` bytes, in UTF-8 with or without a byte-order mark."""
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UserError(f"{path} has {size >> 20} MB, more than the {LARGEST >> 20} MB that are read; split it")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def parse_json(path: Path, text: str) -> Any:
    """The value in a JSON text, with every text in it fit for UTF-8."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair can be written in JSON, but not kept
    except UnicodeEncodeError:
        raise UserError(f"{path} holds half a character (a lone surrogate); export it again") from None
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise UserError(f"{path} is not valid JSON: {why}; export it again") from None
    return value


def clear_reason(found: str) -> str | None:
    """One of the known reasons of a skip, however its case; None if it is none."""
    return found.strip().lower() if found.strip().lower() in REASONS else None


def write_pictures(images: ImageSet, rows: Sequence[int], folder: Path) -> list[str]:
    """PNG files of the images at `rows` in `folder`; their names, which tell nothing and are the same each time."""
    names = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_fault(folder, error) from error
    for row in rows:
        name = f"{hashlib.sha256(images.ids[row].encode()).hexdigest()[:20]}.png"
        pixels = images.images[row]
        with atomic(folder / name) as temporary:
            Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(temporary, format="PNG")
        names.append(name)
    return names
