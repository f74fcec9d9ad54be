"""The empirical coordination gap as bars: one pair of systems (gaps), or what aggregates lose and gain (aggregate)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cofal.evaluation.statistics import Estimate
from cofal.reproduce.book import Book
from cofal.reproduce.naming import colour, coordination_of, method_title, split_title
from cofal.reproduce.paper import reported_gap
from cofal.reproduce.views.drawing import INK, headline, legend_below, panels, reach, zero_line
from cofal.reproduce.views.page import Table, Value, View, shown, shown_paper

CSV = ["set", "split", "better", "other", "seeds", "gap", "error", "low", "high", "paper_gap"]
READING = (
    "Empirical coordination gap in percent, mean ± standard error over seeds: positive where the first system is "
    "better. *paper*: the gap of the paper's mean accuracies. Diamonds in the picture: the paper's."
)
Pair = tuple[str, str]


def view(book: Book) -> View:
    """One pair of systems per selector."""
    pairs = {method: book.pair(method) for method in book.methods}
    rows: list[list[Value]] = []
    tables = [_table(book, split, pairs, rows) for split in book.splits]
    with panels(len(book.splits), width=7.2, height=3.8) as (figure, axes):
        for here, split in zip(axes, book.splits):
            _bars(here, book, split, pairs)
            here.set_title(split_title(split))
        _finish(figure, axes, book)
    return View(tables, CSV, rows, figure, READING)


def aggregate_view(book: Book) -> View:
    """Left: central over aggregate, what is lost. Right: aggregate over per-client, what is gained."""
    panel_pairs = {
        "Lost against central selection (lower is better)": ("central", "aggregate"),
        "Gained over choosing alone (higher is better)": ("aggregate", "per-client"),
    }
    rows: list[list[Value]] = []
    tables = []
    with panels(2, width=6.2, height=3.9) as (figure, axes):
        for here, (title, (first, second)) in zip(axes, panel_pairs.items()):
            pairs = {method: (f"{method}-{first}", f"{method}-{second}") for method in book.methods}
            pairs = {method: pair for method, pair in pairs.items() if set(pair) <= set(book.systems)}
            tables.append(_table(book, "iid", pairs, rows))
            tables[-1].title = title
            _bars(here, book, "iid", pairs)
            here.set_title(title)
        _finish(figure, axes, book)
    return View(tables, CSV, rows, figure, READING)


def _table(book: Book, split: str, pairs: dict[str, Pair], rows: list[list[Value]]) -> Table:
    with_paper = [
        name for name in book.sets if any(_paper(book, name, split, pair) is not None for pair in pairs.values())
    ]
    heads = [
        text
        for name in book.sets
        for text in ([book.title(name), "paper"] if name in with_paper else [book.title(name)])
    ]
    table = Table(["selector", *heads], title=split_title(split))
    for method, pair in pairs.items():
        line = [f"{method_title(method)}: {' − '.join(coordination_of(system) for system in pair)}"]
        for set_name in book.sets:
            gap, paper = book.gap(set_name, split, *pair), _paper(book, set_name, split, pair)
            line.append(shown(gap))
            if set_name in with_paper:
                line.append(shown_paper(paper))
            if gap is not None:
                rows.append([set_name, split, *pair, gap.n, gap.mean, gap.standard_error, gap.low, gap.high, paper])
        table.rows.append(line)
    return table


def _paper(book: Book, set_name: str, split: str, pair: Pair) -> float | None:
    return reported_gap(book.experiment.paper_table, book.paper_set(set_name), split, *pair)


def _bars(axes: Axes, book: Book, split: str, pairs: dict[str, Pair]) -> None:
    """Groups of bars, a group for each set, with standard errors and the paper's gap as a diamond."""
    width = min(0.8 / max(1, len(pairs)), 0.2 * max(1, len(book.sets)))
    for number, (method, pair) in enumerate(pairs.items()):
        for place, set_name in enumerate(book.sets):
            gap = book.gap(set_name, split, *pair)
            if gap is None:
                continue
            x = place + (number - (len(pairs) - 1) / 2) * width
            label = method_title(method) if place == 0 else None
            axes.bar(x, gap.mean, width * 0.88, color=colour(pair[0]), label=label, yerr=reach(gap),
                     error_kw={"ecolor": INK, "elinewidth": 1.2, "capsize": 3})  # fmt: skip
            _value(axes, x, gap)
            paper = _paper(book, set_name, split, pair)
            if paper is not None:
                beside = x + 0.36 * width  # the bar's number stands above its middle
                axes.plot(
                    beside, paper, marker="D", color="white", markeredgecolor=INK, markersize=6.5, linestyle="none",
                    zorder=4,
                )  # fmt: skip
    axes.set_xticks(np.arange(len(book.sets)), [book.title(name) for name in book.sets])
    axes.set_xlim(-0.6, len(book.sets) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("coordination gap (%)")
    zero_line(axes)
    axes.margins(y=0.16)


def _value(axes: Axes, x: float, gap: Estimate) -> None:
    """The number, beyond the end of its bar and error."""
    end = gap.mean + (reach(gap) if gap.mean >= 0 else -reach(gap))
    axes.annotate(f"{gap.mean:.1f}", (x, end), xytext=(0, 4 if gap.mean >= 0 else -4), textcoords="offset points",
                  ha="center", va="bottom" if gap.mean >= 0 else "top", fontsize=9)  # fmt: skip


def _finish(figure: Figure, axes: list[Axes], book: Book) -> None:
    if any(book.paper_set(name) for name in book.sets) and book.experiment.paper_table:
        axes[0].plot(
            [], [], marker="D", color="white", markeredgecolor=INK, markersize=6.5, linestyle="none", label="paper"
        )
    legend_below(figure, axes[0], len(book.methods) + 1)
    headline(figure, book.experiment.title)
