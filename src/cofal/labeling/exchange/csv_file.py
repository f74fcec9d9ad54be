"""CSV with the columns id,label,skipped: a worksheet of what was asked, and the way back.

A text that a spreadsheet would take for a formula is written with a quote before it, and read with or without.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable
from pathlib import Path

from cofal.errors import UserError
from cofal.files import write_text
from cofal.labeling.exchange import label_studio
from cofal.labeling.exchange.files import NOBODY, Read, clear_reason
from cofal.labeling.merging import Incoming
from cofal.labeling.records import Query

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")


def write_csv(path: Path, asked: Iterable[Query]) -> None:
    """One line a question, in rank order; label and skipped are empty where nothing is settled."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(["id", "label", "skipped"])
    for query in asked:
        writer.writerow([_safe(query.id), _safe(query.label or ""), query.reason or ""])
    write_text(path, out.getvalue())


def read_csv(path: Path, text: str, ids: Collection[str], classes: Collection[str], annotator: str) -> Read:
    """The lines with a label or a reason; lines with neither are still to do.

    ids, classes: those of the site, to tell a quoted formula from a name that begins with a quote.
    """
    found = Read()
    try:
        separator = max(",;\t", key=text.partition("\n")[0].count)  # spreadsheets write what their country is used to
        rows = io.StringIO(text, newline="")
        lines = csv.DictReader(rows, strict=True, restkey="", restval="", delimiter=separator)
        names = _own_names([name.strip().lower() for name in lines.fieldnames or []])
        if "id" not in names or not {"label", "skipped"} & set(names):
            raise UserError(f"{path} needs the columns id,label in its first line; found {', '.join(names)[:200]!r}")
        if twice := [name for name in ("id", "label", "skipped") if names.count(name) > 1]:
            raise UserError(f"{path} has the column {twice[0]!r} twice; remove the one that does not count")
        lines.fieldnames = names
        for line in lines:
            sample = _unquoted(line["id"] or "", ids)
            label, skipped = _unquoted(line.get("label") or "", classes), (line.get("skipped") or "").strip()
            if not label and not skipped:
                continue
            reason = clear_reason(skipped)
            if (label and skipped) or (skipped and reason is None):
                found.unreadable.append(f"line {lines.line_num}, {sample!r}: label {label!r}, skipped {skipped!r}")
                continue
            found.answers.append(Incoming(sample, label or None, reason, annotator or NOBODY, person=bool(annotator)))
    except csv.Error as error:
        raise UserError(f"{path} is not valid CSV: {error}; save it as CSV with commas") from None
    return found


def _own_names(columns: list[str]) -> list[str]:
    """The columns as they are, or those of Label Studio's CSV export, whose own `id` is the number of a task."""
    if label_studio.ID not in columns:
        return columns
    return [{"id": "task", label_studio.ID: "id", label_studio.SKIP: "skipped"}.get(name, name) for name in columns]


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _unquoted(text: str, known: Collection[str]) -> str:
    """What `_safe` made of one of the `known` texts, as it was; any other text as it is."""
    inner = text.removeprefix("'")
    return inner if inner != text and inner.startswith(_FORMULA) and inner in known else text
