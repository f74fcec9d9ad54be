"""Figures with a line a selector: the gap against alpha, the area against noise."""

from __future__ import annotations

from cofal.evaluation.curves import Curves, mean_height
from cofal.evaluation.statistics import Estimate, estimate
from cofal.reproduce.book import Book
from cofal.reproduce.naming import colour, method_title, split_title
from cofal.reproduce.paper import reported, reported_gap
from cofal.reproduce.views.drawing import band, headline, legend_below, panels, zero_line
from cofal.reproduce.views.gaps import CSV, READING
from cofal.reproduce.views.page import Table, Value, View, shown, shown_paper


def alpha_view(book: Book) -> View:
    """The gap from IID clients (left) to very unlike ones (right), a panel for each set."""
    rows: list[list[Value]] = []
    tables = []
    places = range(len(book.splits))
    with panels(len(book.sets), width=5.4 if len(book.sets) > 1 else 8.4, height=3.8) as (figure, axes):
        for here, set_name in zip(axes, book.sets):
            heads = [text for split in book.splits for text in (split_title(split), "paper")]
            table = Table(["selector", *heads], title=book.title(set_name))
            for method in book.methods:
                pair = book.pair(method)
                gaps = [book.gap(set_name, split, *pair) for split in book.splits]
                known = [gap for gap in gaps if gap is not None]
                papers = [
                    reported_gap(book.experiment.paper_table, book.paper_set(set_name), split, *pair)
                    for split in book.splits
                ]
                band(here, list(places), known, colour(pair[0]), method_title(method))
                told = [paper for paper in papers if paper is not None]
                if len(told) == len(papers):
                    here.plot(places, told, color=colour(pair[0]), linestyle=(0, (1, 2)), linewidth=1.4)
                line = [method_title(method)]
                for split, gap, paper in zip(book.splits, known, papers):
                    line += [shown(gap), shown_paper(paper)]
                    rows.append([set_name, split, *pair, gap.n, gap.mean, gap.standard_error, gap.low, gap.high, paper])
                table.rows.append(line)
            tables.append(table)
            zero_line(here)
            here.set_xticks(list(places), [split_title(split) for split in book.splits])
            here.set_xlabel("clients: alike → unlike")
            here.set_title(book.title(set_name))
        axes[0].set_ylabel("coordination gap (%)")
        if any(map(book.paper_set, book.sets)):
            axes[-1].plot([], [], color="#6d7583", linestyle=(0, (1, 2)), linewidth=1.4, label="paper (CIFAR-100)")
        legend_below(figure, axes[-1], len(book.methods) + 1)
        headline(figure, book.experiment.title)
    return View(tables, CSV, rows, figure, READING)


def noise_view(book: Book) -> View:
    """The mean accuracy over budgets, relative to no noise, against epsilon; dashed: choosing alone."""
    rows: list[list[Value]] = []
    tables = []
    with panels(len(book.sets), width=5.4 if len(book.sets) > 1 else 8.4, height=3.8) as (figure, axes):
        for here, set_name in zip(axes, book.sets):
            table = Table(["selector"], title=book.title(set_name))
            for method in book.methods:
                plain = book.curves(set_name, "iid", f"{method}-central")
                if plain is None:
                    continue
                levels, values, line = [0.0], [_relative(plain, plain)], [method_title(method)]
                systems = [f"{method}-central"]
                for system in book.systems:
                    if system.startswith(f"{method}-perturbed-"):
                        noised = book.curves(set_name, "iid", system)
                        assert noised is not None
                        levels.append(float(system.rpartition("-")[2]))
                        values.append(_relative(noised, plain))
                        systems.append(system)
                band(here, levels, values, colour(method), method_title(method))
                heads = [f"ε = {level:g}" for level in levels]
                alone = book.curves(set_name, "iid", f"{method}-per-client")
                if alone is not None:
                    value = _relative(alone, plain)
                    here.axhline(value.mean, color=colour(method), linestyle="--", linewidth=1.3)
                    heads, values, systems = [*heads, "alone"], [*values, value], [*systems, f"{method}-per-client"]
                table.columns = ["selector", *(text for head in heads for text in (head, "paper"))]
                for system, value in zip(systems, values):
                    paper = _paper_relative(book, set_name, method, system)
                    line += [shown(value), shown_paper(paper)]
                    rows.append(
                        [set_name, system, value.n, value.mean, value.standard_error, value.low, value.high, paper]
                    )
                table.rows.append(line)
            tables.append(table)
            here.set_title(book.title(set_name))
            here.set_xlabel("expected displacement ε of every embedding")
        axes[0].set_ylabel("area under the curve\n(% of that without noise)")
        axes[-1].plot([], [], color="#6d7583", linestyle="--", linewidth=1.3, label="choosing alone, no noise")
        legend_below(figure, axes[-1], len(book.methods) + 1)
        headline(figure, book.experiment.title)
    reading = "Area under the accuracy-budget curve in percent of that without noise, mean ± standard error over seeds."
    columns = ["set", "system", "seeds", "relative_area", "error", "low", "high", "paper_relative_area"]
    return View(tables, columns, rows, figure, reading)


def _relative(curves: Curves, plain: Curves) -> Estimate:
    """Mean height in percent of that of `plain`, paired by seed."""
    return estimate([100 * a / b for a, b in zip(curves.heights(), plain.heights())])


def _paper_relative(book: Book, set_name: str, method: str, system: str) -> float | None:
    budgets = book.scale.sets[set_name].budgets
    heights = []
    for each in (system, f"{method}-central"):
        values = [
            reported(book.experiment.paper_table, book.paper_set(set_name), "iid", each, budget) for budget in budgets
        ]
        known = [value.mean for value in values if value is not None]
        if len(known) < len(budgets):
            return None
        heights.append(mean_height(budgets, known))
    return 100 * heights[0] / heights[1]
