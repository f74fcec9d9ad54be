"""The two figures of an attack study: accuracy against leakage, and the grid of rebuilt pictures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from cofal.privacy.attacks.study import Row, Study

_COLOURS = {"tangent": "#0a67b3", "vmf": "#b8480a", "aggregate": "#00735f", "nothing": "#6d7583"}
_WORDS = {
    "tangent": "embeddings, tangent noise",
    "vmf": "embeddings, vmf noise",
    "aggregate": "aggregates only",
    "nothing": "nothing leaves (each alone)",
}


def leakage(study: Study) -> bytes:
    """PNG: what each way of sharing keeps of the accuracy, against what an attacker gets out of it."""
    figure, (left, right) = _canvas(2, (11.5, 4.9))
    _panel(left, study, lambda row: row.membership)
    left.set_xlabel("Was this image there? Success of the best attack\n(0.5: coin toss, 1: always right)")
    left.set_ylabel("Mean test accuracy over the label budgets (%)")
    left.set_xlim(0.47, 1.06)
    _panel(right, study, lambda row: row.likeness.ssim)
    right.set_xlabel("Likeness of rebuilt pictures to the originals\n(structural similarity; 1: the same)")
    figure.suptitle("Up is better for the model, left is better for privacy", x=0.02, ha="left", fontsize=12)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=4, frameon=False, fontsize=9.5)
    figure.tight_layout(rect=(0, 0.07, 1, 0.97))
    return _png(figure)


def _panel(axes: Any, study: Study, leak: Any) -> None:
    groups: dict[str, list[Row]] = {}
    for row in study.rows:
        groups.setdefault(row.level.mechanism if row.level.kind == "noise" else row.level.kind, []).append(row)
    raw = [row for row in study.rows if row.level.kind == "noise" and row.level.epsilon == 0]
    for name, rows in groups.items():
        line = [*(raw if name == "vmf" else []), *rows]
        colour, marker = _COLOURS[name], {"aggregate": "D", "nothing": "s"}.get(name, "o")
        axes.plot(
            [leak(row) for row in line], [100 * row.accuracy for row in line], "-", color=colour, lw=1.2, alpha=0.5
        )
        axes.errorbar(
            [leak(row) for row in rows],
            [100 * row.accuracy for row in rows],
            [100 * row.accuracy_error for row in rows],
            fmt=marker, ms=7, color=colour, elinewidth=1, capsize=2.5, label=_WORDS[name],
        )  # fmt: skip
    for row in study.rows:
        if row.level.kind == "noise":
            _label(axes, study, row, leak(row))
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    axes.grid(color="#dfe3ea", lw=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(axes: Any, study: Study, row: Row, x: float) -> None:
    """The noise level beside a point: above the better of the two mechanisms, below the other."""
    level, height = row.level, 100 * row.accuracy
    rivals = [
        each.accuracy for each in study.rows if each.level.kind == "noise" and each.level.epsilon == level.epsilon
    ]
    up = row.accuracy >= max(rivals)
    edge = height + (1 if up else -1) * 100 * row.accuracy_error
    axes.annotate(
        f"ε {level.epsilon:g}" if level.epsilon else "raw",
        (x, edge if level.epsilon else height),
        textcoords="offset points",
        xytext=(0, 5 if up else -6) if level.epsilon else (8, -4),
        ha="center" if level.epsilon else "left",
        va=("bottom" if up else "top") if level.epsilon else "baseline",
        fontsize=8.5,
        color=_COLOURS[level.mechanism],
    )


def pictures(study: Study) -> bytes:
    """PNG: the same images at every level, rebuilt by the attacker's decoder."""
    rows, columns = len(study.grid), len(study.grid[0][1])
    figure, axes = _canvas(rows * columns, (2.9 + 0.8 * columns, 0.86 * rows + 0.3), shape=(rows, columns))
    for number, (name, images) in enumerate(study.grid):
        for column in range(columns):
            place = axes[number][column]
            place.axis("off")
            if column < len(images):
                image = np.moveaxis(images[column], 0, 2)
                smooth = "nearest" if image.shape[0] <= 16 else "antialiased"
                place.imshow(np.clip(image.squeeze(), 0, 1), cmap="gray", vmin=0, vmax=1, interpolation=smooth)
        axes[number][0].text(
            -0.15, 0.5, name, transform=axes[number][0].transAxes, ha="right", va="center", fontsize=10.5,
            fontweight="bold" if number == 0 else "normal",
        )  # fmt: skip
    figure.subplots_adjust(
        left=2.75 / (2.9 + 0.8 * columns), right=0.99, top=0.985, bottom=0.015, wspace=0.06, hspace=0.1
    )
    return _png(figure)


def _canvas(count: int, size: tuple[float, float], shape: tuple[int, int] | None = None) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=150)
    FigureCanvasAgg(figure)  # drawn in memory, whatever screen there is
    rows, columns = shape or (1, count)
    return figure, figure.subplots(rows, columns, squeeze=False) if shape else figure.subplots(rows, columns)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
