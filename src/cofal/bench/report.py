"""The one table that every benchmark ends in: figure, target, verdict."""

from __future__ import annotations

import math
from typing import Any


def reached(figure: dict[str, Any]) -> bool:
    """Whether a figure {value, target, at_most} reaches its target."""
    value, target = figure["value"], figure["target"]
    return bool(math.isfinite(value) and (value <= target if figure["at_most"] else value >= target))


def print_figures(figures: dict[str, dict[str, Any]]) -> None:
    """A Rich table of the figures on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "value", "target", "verdict")
    for name, figure in figures.items():
        sign = "≤" if figure["at_most"] else "≥"
        mark = "[green]reached[/]" if reached(figure) else "[red]missed[/]"
        table.add_row(name, f"{figure['value']:.3g}", f"{sign} {figure['target']:g}", mark)
    Console().print(table)


def figures_markdown(figures: dict[str, dict[str, Any]]) -> str:
    """The same table as Markdown."""
    lines = ["| figure | value | target | verdict |", "| --- | ---: | ---: | --- |"]
    for name, figure in figures.items():
        sign = "<=" if figure["at_most"] else ">="
        verdict = "reached" if reached(figure) else "missed"
        lines.append(f"| {name} | {figure['value']:.3g} | {sign} {figure['target']:g} | {verdict} |")
    return "\n".join(lines) + "\n"
