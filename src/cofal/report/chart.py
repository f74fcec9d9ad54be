"""Geometry of the line and bar charts: where ticks, lines and labels go. The template draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_LETTER = 9.1  # units that a letter of a name takes in the widest of the usual fonts: which one is there is not known


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    tip: str


@dataclass
class Series:
    """One line: its values and how it is told from the others."""

    name: str
    values: list[tuple[float, float]]  # in data units
    tips: list[str]
    method: str = ""  # decides the colour, and what a highlighted method leaves visible
    dashed: str = ""  # dashed | dotted | "" for a whole line
    dots: list[Dot] = field(default_factory=list)
    label: tuple[float, float] | None = None  # where the direct label stands

    @property
    def path(self) -> str:
        return " ".join(f"{'L' if number else 'M'}{dot.x:.1f} {dot.y:.1f}" for number, dot in enumerate(self.dots))


@dataclass(frozen=True)
class LineChart:
    """A drawn-to-scale chart in a box of `width` by `height` units."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    series: list[Series]
    x_title: str
    y_title: str
    description: str


@dataclass(frozen=True)
class Bar:
    name: str
    method: str
    x: float
    y: float
    length: float
    text: str
    text_x: float
    anchor: str


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars from a zero line."""

    width: float
    height: float
    zero: float
    bars: list[Bar]
    description: str


def line_chart(
    series: Sequence[Series],
    *,
    x_title: str,
    y_title: str,
    description: str,
    width: float = 760,
    height: float = 400,
    x_ticks: Sequence[float] | None = None,
    percent: bool = True,
    floor: float | None = None,
    direct_labels: bool = True,
) -> LineChart:
    """Place `series` (data units; shares in 0..1 with `percent`), their names at the lines' ends without overlap."""
    left, top, bottom = 52.0, 26.0, height - 44.0
    longest = max((len(each.name) for each in series), default=0)
    right = width - (min(_LETTER * longest + 30, 0.42 * width) if direct_labels else 14.0)
    xs = [x for each in series for x, _ in each.values]
    ys = [y for each in series for _, y in each.values]
    low, high, step = _axis(min(ys) if floor is None else min(floor, *ys), max(ys), percent)
    x_low, x_high = min(xs), max(xs)

    def place_x(x: float) -> float:
        return left + (right - left) * ((x - x_low) / (x_high - x_low) if x_high > x_low else 0.5)

    def place_y(y: float) -> float:
        return bottom - (bottom - top) * (y - low) / (high - low)

    for each in series:
        each.dots = [Dot(place_x(x), place_y(y), tip) for (x, y), tip in zip(each.values, each.tips, strict=True)]
    if direct_labels:
        heights = spread([each.dots[-1].y for each in series], gap=17.0, low=top, high=bottom)
        for each, y in zip(series, heights, strict=True):
            each.label = (right + 22, y)
    ticks = [low + number * step for number in range(round((high - low) / step) + 1)]
    return LineChart(
        width, height, left, right, top, bottom,
        _thinned([Tick(place_x(x), f"{x:g}") for x in (sorted(set(xs)) if x_ticks is None else x_ticks)]),
        [Tick(place_y(y), f"{100 * y:.0f}" if percent else f"{y:.{_decimals(step)}f}") for y in ticks],
        list(series), x_title, y_title, description,
    )  # fmt: skip


def bar_chart(
    values: Sequence[tuple[str, str, float, str]], *, least: float, description: str, width: float = 760
) -> BarChart:
    """Bars of (name, method, value, text); negative ones go left of the zero line.

    The longest fills the width, unless it is under `least`: a small value must not look large for want of a larger one.
    """
    row, text_width = 36.0, 72.0
    name_width = max(112.0, _LETTER * max(len(name) for name, *_ in values) + 14)
    low, high = min(0.0, *(value for _, _, value, _ in values)), max(0.0, *(value for _, _, value, _ in values))
    begin = name_width + (text_width if low < 0 else 0)
    scale = (width - text_width - begin) / max(high - low, least)
    zero = begin - low * scale
    bars = []
    for number, (name, method, value, text) in enumerate(values):
        end = zero + value * scale
        negative = value < 0
        bars.append(
            Bar(
                name,
                method,
                min(zero, end),
                number * row + 8,
                abs(end - zero),
                text,
                end + (-8 if negative else 8),
                "end" if negative else "start",
            )
        )
    return BarChart(width, len(values) * row + 8, zero, bars, description)


def spread(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted`, in the same order, at least `gap` apart, and inside [low, high] as far as they fit."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    placed = [max(low, min(high, wanted[number])) for number in order]
    for number in range(1, len(placed)):
        placed[number] = max(placed[number], placed[number - 1] + gap)
    if placed and placed[-1] > high:
        placed[-1] = high
        for number in range(len(placed) - 2, -1, -1):
            placed[number] = min(placed[number], placed[number + 1] - gap)
    back = [0.0] * len(wanted)
    for number, value in zip(order, placed, strict=True):
        back[number] = value
    return back


def _axis(low: float, high: float, percent: bool) -> tuple[float, float, float]:
    """Low end, high end and step of an axis with four to seven round ticks; shares stay within 0 and 1."""
    span = max(high - low, 0.05 if percent else max(abs(high), 1.0) * 1e-3)
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    begin, end = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    if end <= begin:
        end = begin + step
    if percent:
        begin, end = max(0.0, begin), min(1.0, end)
        if end <= begin:
            begin = end - step
    return begin, end, step


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))


def _thinned(ticks: list[Tick], gap: float = 30.0) -> list[Tick]:
    """Ticks at least `gap` apart; the last one always stays."""
    kept: list[Tick] = []
    for tick in reversed(ticks):
        if not kept or kept[-1].at - tick.at >= gap:
            kept.append(tick)
    return kept[::-1]
