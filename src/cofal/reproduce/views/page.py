"""A finished table or figure: rows with their headings, a picture, and the two text files made of them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from cofal.evaluation.statistics import Estimate
from cofal.reproduce.paper import Reported

Value = str | float | int | None


@dataclass
class Table:
    """Rows for people (Markdown) and for programs (CSV)."""

    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    title: str = ""

    def markdown(self) -> str:
        lines = [f"**{self.title}**\n"] if self.title else []
        numeric = [number > 0 and _numbers([row[number] for row in self.rows]) for number in range(len(self.columns))]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("| " + " | ".join("---:" if right else "---" for right in numeric) + " |")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"


def _numbers(cells: Sequence[str]) -> bool:
    """Do all cells that say anything begin with a number?"""
    said = [cell for cell in cells if cell not in ("", "–")]
    return bool(said) and all(re.match(r"\**[-−]?\d", cell) for cell in said)


@dataclass
class View:
    """What a view makes of a book: tables to read, the flat rows behind them, and a picture."""

    tables: list[Table]
    csv_columns: list[str]
    csv_rows: list[list[Value]]
    figure: Figure
    reading: str = ""  # how to read the tables, in a sentence

    def csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.csv_columns)
        writer.writerows([[_plain(value) for value in row] for row in self.csv_rows])
        return buffer.getvalue()


def _plain(value: Value) -> str | int:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.4f}" if isinstance(value, float) else value


def shown(estimate: Estimate | None, digits: int = 1, bold: bool = False) -> str:
    """`84.4 ±0.3`: mean and standard error."""
    if estimate is None:
        return ""
    error = f" ±{estimate.standard_error:.{digits}f}" if math.isfinite(estimate.standard_error) else ""
    text = f"{estimate.mean:.{digits}f}"
    return f"**{text}**{error}" if bold else f"{text}{error}"


def shown_paper(value: Reported | float | None, digits: int = 1) -> str:
    if value is None:
        return "–"
    if isinstance(value, Reported):
        return f"{value.mean:.{digits}f} ±{value.error:.{digits}f}"
    return f"{value:.{digits}f}"


def best(estimates: Sequence[Estimate | None]) -> int | None:
    """The place of the largest mean."""
    known = [(each.mean, -number) for number, each in enumerate(estimates) if each is not None]
    return -max(known)[1] if known else None
