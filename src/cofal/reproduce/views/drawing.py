"""The look of all figures: one palette, a light background, and files that are the same bytes when made again."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cofal.evaluation.statistics import Estimate
from cofal.files import write_bytes

INK, SOFT, RULE = "#1b2230", "#5a6474", "#dfe3ea"
_STYLE: Any = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": RULE,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "cofal",  # else the names inside an SVG are random
    "svg.fonttype": "path",
}


@contextmanager
def panels(
    columns: int, rows: int = 1, *, width: float = 4.4, height: float = 3.4
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with its panels, row by row, in the common style."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        yield figure, list(axes.ravel())


def headline(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.012, ha="left", fontsize=13.5, fontweight="bold", color=INK)


def save(figure: Figure, stem: Path) -> None:
    """STEM.png and STEM.svg, without dates."""
    for kind, options in (("png", {"dpi": 150, "metadata": {"Software": None}}), ("svg", {"metadata": {"Date": None}})):
        buffer = io.BytesIO()
        with mpl.rc_context(_STYLE):
            figure.savefig(buffer, format=kind, **options)  # type: ignore[arg-type]
        write_bytes(stem.with_suffix(f".{kind}"), buffer.getvalue())


def reach(estimate: Estimate) -> float:
    """The standard error to draw; none where one seed leaves it unknown."""
    return estimate.standard_error if np.isfinite(estimate.standard_error) else 0.0


def band(
    axes: Axes,
    x: Sequence[float],
    estimates: Sequence[Estimate],
    colour: str,
    label: str,
    style: str = "-",
    marker: str = "o",
) -> None:
    """A line through means, with a band of one standard error."""
    mean = np.array([each.mean for each in estimates])
    error = np.array([reach(each) for each in estimates])
    axes.fill_between(x, mean - error, mean + error, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        x,
        mean,
        style,
        color=colour,
        label=label,
        marker=marker,
        markersize=5,
        markeredgecolor="white",
        markeredgewidth=0.8,
    )


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def zero_line(axes: Axes) -> None:
    axes.axhline(0, color=INK, linewidth=1.0, zorder=1.5)
