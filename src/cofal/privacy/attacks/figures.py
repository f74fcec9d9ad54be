"""The two figures of an attack study: accuracy against leakage, and the grid of rebuilt pictures."""

from __future__ import annotations

import io
from collections.abc import Iterator
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
# Marks at one place all stay to be seen: outlines of growing size around a dot. Sizes in points of 1/72 inch.
_MARKS = {"tangent": ("o", 6.0), "vmf": ("o", 9.0), "aggregate": ("D", 8.5), "nothing": ("s", 11.5)}
_REACH = 6.5  # such points from the middle of a mark that names keep off
_CAP = 2.5  # such points from an error bar to the end of its cap
_GAP = 2.5  # between a mark and its name
_STEPS, _STEP = 25, 8  # how often, and how far, a name moves on from its point where there is no room
_NAMES = 1.5  # inches for the names of the rows of pictures
_MARGIN = 12  # such points right of the axes where a name may reach
Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


def leakage(study: Study) -> bytes:
    """PNG: what each way of sharing keeps of the accuracy, against what an attacker gets out of it."""
    return _png(against_leakage(study))


def against_leakage(study: Study) -> Any:
    """The figure of `leakage`."""
    figure, (left, right) = _canvas(2, (11.5, 4.9))
    _panel(left, study, lambda row: row.membership)
    left.set_xlabel("Was this image there? Success of the best attack\n(0.5: coin toss, 1: always right)")
    start = "" if left.get_ylim()[0] <= 0 else "\n(the axis does not start at 0)"
    left.set_ylabel(f"Mean test accuracy over the label budgets (%){start}")
    left.set_xlim(min(0.5, *(row.membership for row in study.rows)) - 0.04, 1.06)
    _panel(right, study, lambda row: row.likeness.ssim)
    right.set_xlabel("Likeness of rebuilt pictures to the originals\n(structural similarity; 1: the same)")
    figure.suptitle("Up is better for the model, left is better for privacy", x=0.02, ha="left", fontsize=12)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=4, frameon=False, fontsize=9.5)
    figure.tight_layout(rect=(0, 0.07, 1, 0.97))
    _label(left, study, lambda row: row.membership)
    _label(right, study, lambda row: row.likeness.ssim)
    return figure


def _panel(axes: Any, study: Study, leak: Any) -> None:
    groups: dict[str, list[Row]] = {}
    for row in study.rows:
        groups.setdefault(_kind(row), []).append(row)
    raw = [row for row in study.rows if row.level.kind == "noise" and row.level.epsilon == 0]
    for name, rows in groups.items():
        line = [*(raw if name == "vmf" else []), *rows]
        colour, (marker, size) = _COLOURS[name], _MARKS[name]
        axes.plot(
            [leak(row) for row in line], [100 * row.accuracy for row in line], "-", color=colour, lw=1.2, alpha=0.5
        )
        axes.errorbar(
            [leak(row) for row in rows],
            [100 * row.accuracy for row in rows],
            [100 * row.accuracy_error for row in rows],
            fmt=marker, ms=size, color=colour, mfc=colour if name == "tangent" else "none",
            mec="white" if name == "tangent" else colour, mew=0.6 if name == "tangent" else 1.3,
            elinewidth=1, capsize=_CAP, capthick=1, label=_WORDS[name],
        )  # fmt: skip
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
    axes.grid(color="#dfe3ea", lw=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(axes: Any, study: Study, leak: Any) -> None:
    """Name every point where that hides no point and no other name; for axes that have their final place.

    Where there is no room beside it, the name stands further off and a line leads to it.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke

    marks, bars = zip(*(_around(axes, leak(row), row) for row in study.rows), strict=True)
    taken: list[Box] = [*marks, *bars]
    for row, mark, bar in zip(study.rows, marks, bars, strict=True):
        colour = _COLOURS[_kind(row)]
        name = axes.text(0, 0, _name(row), transform=None, va="bottom", fontsize=8.5, color=colour)
        name.set_path_effects([withStroke(linewidth=2, foreground="white")])
        size = name.get_window_extent()
        places = list(_places(axes, mark, bar, (size.width, size.height), _directions(study, row)))
        box, far = min(places, key=lambda each: sum(_shared(each[0], o) for o in taken) + _outside(each[0], axes))
        name.set_position((box[0] - size.x0, box[1] - size.y0))
        if far:
            x, y = (mark[0] + mark[2]) / 2, (mark[1] + mark[3]) / 2
            end = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
            axes.add_artist(Line2D([x, end[0]], [y, end[1]], transform=None, color=colour, lw=0.6, zorder=1))
        taken.append(box)


def _directions(study: Study, row: Row) -> list[tuple[int, int]]:
    """Where a name may stand, right and up of its point, the better places first."""
    upright = [(0, 1), (0, -1)] if _better(study, row) else [(0, -1), (0, 1)]
    beside = [(1, 0), (-1, 0)]
    corners = [(x, y) for x, _ in beside for _, y in ((0, 1), (0, -1))]
    return [*upright, *beside, *corners] if row.level.epsilon else [*beside, *upright, *corners]


def _places(
    axes: Any, mark: Box, bar: Box, size: tuple[float, float], directions: list[tuple[int, int]]
) -> Iterator[tuple[Box, bool]]:
    """Boxes for a name of this size, nearest first, and whether they are farther than beside the point."""
    pixel = axes.figure.dpi / 72
    (width, height), gap = size, _GAP * pixel
    middle, centre = (mark[0] + mark[2]) / 2, (mark[1] + mark[3]) / 2
    for step in range(_STEPS):
        off = gap + step * _STEP * pixel
        for right, up in directions:
            aside = off if up == 0 else off - gap - (mark[2] - mark[0])  # above and below, flush with the mark
            left = (middle - width / 2, mark[2] + aside, mark[0] - aside - width)[right]
            bottom = (centre - height / 2, bar[3] + off, bar[1] - off - height)[up]
            yield (left, bottom, left + width, bottom + height), step > 0


def _around(axes: Any, x: float, row: Row) -> tuple[Box, Box]:
    """A point's mark and its error bar in pixels."""
    heights = [100 * (row.accuracy + sign * row.accuracy_error) for sign in (-1, 0, 1)]
    (x, low), (_, middle), (_, high) = axes.transData.transform([(x, height) for height in heights])
    pixel = axes.figure.dpi / 72
    reach, cap = _REACH * pixel, _CAP * pixel
    mark = x - reach, middle - reach, x + reach, middle + reach
    return mark, (x - cap, min(low, mark[1]), x + cap, max(high, mark[3]))


def _shared(a: Box, b: Box) -> float:
    """Square pixels that two boxes have in common."""
    return float(max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1])))


def _outside(box: Box, axes: Any) -> float:
    """Square pixels of a box that are left or below of the axes, where numbers stand, or off the picture."""
    inside = (axes.bbox.x0, axes.bbox.y0, axes.bbox.x1 + _MARGIN * axes.figure.dpi / 72, axes.bbox.y1)
    return _shared(box, box) - _shared(box, inside)


def _better(study: Study, row: Row) -> bool:
    """Is its accuracy the better one of the two mechanisms? That one has its name above."""
    return all(row.accuracy >= each.accuracy for each in study.rows if each.level.epsilon == row.level.epsilon)


def _name(row: Row) -> str:
    if row.level.kind == "noise":
        return f"ε {row.level.epsilon:g}" if row.level.epsilon else "raw"
    return "aggregates" if row.level.kind == "aggregate" else "nothing leaves"


def _kind(row: Row) -> str:
    return row.level.mechanism if row.level.kind == "noise" else row.level.kind


def pictures(study: Study) -> bytes:
    """PNG: the same images at every level, rebuilt by the attacker's decoder."""
    rows, columns = len(study.grid), len(study.grid[0][1])
    figure, axes = _canvas(rows * columns, (_NAMES + 0.8 * columns, 0.86 * rows + 0.3), shape=(rows, columns))
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
        left=(_NAMES - 0.15) / (_NAMES + 0.8 * columns), right=0.99, top=0.985, bottom=0.015, wspace=0.06, hspace=0.1
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
