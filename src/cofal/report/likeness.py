"""The figure of `cofal advise`: how alike each two clients are, as a matrix of numbers on colours."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cofal.errors import UserError

FORMATS = (".png", ".svg", ".pdf")
_MOST_NUMBERS = 24  # clients up to which every square carries its number


def check_format(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"cannot draw {path}: its ending must be one of {', '.join(FORMATS)}")


def likeness_figure(matrix: np.ndarray, names: Sequence[str], ending: str) -> bytes:
    """The (clients, clients) overlaps as a picture in the format of `ending`, such as ".png"."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clients = len(matrix)
    side = min(12.0, 2.6 + 0.62 * clients)
    figure = Figure(figsize=(side + 0.9, side))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(np.clip(matrix, 0, 1), vmin=0, vmax=1, cmap="Blues")
    axes.set_xticks(range(clients), names, rotation=45, ha="right")
    axes.set_yticks(range(clients), names)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if clients <= _MOST_NUMBERS:
        for row in range(clients):
            for column in range(clients):
                value = min(max(float(matrix[row, column]), 0.0), 1.0)
                colour = "white" if value > 0.55 else "#1d2733"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=9)
    axes.set_title(
        "How alike the clients' images are\n(1: as one source, 0: nothing in common)", loc="left", fontsize=10
    )
    figure.colorbar(image, ax=axes, shrink=0.8)
    figure.tight_layout()
    drawn = io.BytesIO()
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending, {})
    with rc_context({"svg.hashsalt": "cofal"}):  # with no date and a fixed salt, the same numbers give the same file
        figure.savefig(drawn, format=ending.lstrip("."), dpi=150, metadata=metadata)
    return drawn.getvalue()
