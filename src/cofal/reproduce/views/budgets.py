"""Accuracy at each budget, ours beside the paper's; drawn as accuracy-budget curves."""

from __future__ import annotations

from cofal.evaluation.curves import Curves
from cofal.reproduce.book import Book
from cofal.reproduce.naming import colour, coordination_of, method_of, method_title, split_title, system_title
from cofal.reproduce.paper import reported
from cofal.reproduce.views.drawing import band, headline, panels
from cofal.reproduce.views.page import Table, Value, View, best, shown, shown_paper

_LINES = {"central": ("-", "o"), "aggregate": ("--", "s"), "per-client": (":", "v"), "own encoders": (":", "v")}


def view(book: Book) -> View:
    """A block of rows for each selector; bold marks the best of the block at that budget."""
    rows: list[list[Value]] = []
    tables = [_table(book, set_name, split, rows) for set_name, split in _places(book)]
    columns = ["set", "split", "clients", "system", "budget", "seeds", "accuracy", "error", "low", "high"]
    columns += ["paper_accuracy", "paper_error"]
    reading = "Test accuracy in percent, mean ± standard error over seeds; bold: the best of its block."
    return View(tables, columns, rows, _figure(book), reading)


def _places(book: Book) -> list[tuple[str, str]]:
    """The sets and splits that the grid has together."""
    there = {(record.cell.set, record.cell.on.name) for record in book.records}
    return [(name, split) for name in book.sets for split in book.splits if (name, split) in there]


def _table(book: Book, set_name: str, split: str, rows: list[list[Value]]) -> Table:
    plan = book.scale.sets[set_name]
    found = {system: book.curves(set_name, split, system) for system in book.systems}
    curves: dict[str, Curves] = {system: curve for system, curve in found.items() if curve is not None}
    budgets = next(iter(curves.values())).budgets
    with_paper = any(
        reported(book.experiment.paper_table, plan.paper, split, system, budget)
        for system in curves
        for budget in budgets
    )
    heads = [
        text for budget in budgets for text in ([f"{budget} labels", "paper"] if with_paper else [f"{budget} labels"])
    ]
    clients = book.of(set_name, split, next(iter(curves)))[0].cell.clients
    table = Table(["system", *heads], title=f"{book.title(set_name)}, {clients} clients, {split_title(split)}")
    for method in book.methods:
        block = [system for system in curves if method_of(system) == method]
        winners = [best([curves[system].at(step) for system in block]) for step in range(len(budgets))]
        for place, system in enumerate(block):
            line = [system_title(system)]
            for step, budget in enumerate(budgets):
                ours = curves[system].at(step)
                paper = reported(book.experiment.paper_table, plan.paper, split, system, budget)
                line.append(shown(ours, bold=len(block) > 1 and winners[step] == place))
                if with_paper:
                    line.append(shown_paper(paper))
                values = [ours.n, ours.mean, ours.standard_error, ours.low, ours.high, *(paper or (None, None))]
                rows.append([set_name, split, clients, system, budget, *values])
            table.rows.append(line)
    return table


def _figure(book: Book):  # type: ignore[no-untyped-def]
    places = _places(book)
    with panels(len(book.methods), len(places), width=3.9, height=3.0) as (figure, axes):
        for row, (set_name, split) in enumerate(places):
            for column, method in enumerate(book.methods):
                here = axes[row * len(book.methods) + column]
                for number, system in enumerate(each for each in book.systems if method_of(each) == method):
                    curve = book.curves(set_name, split, system)
                    if curve is None:
                        continue
                    coordination = coordination_of(system)
                    style, marker = _LINES.get(coordination, ("-", "o"))
                    shade = _shade(colour(system), coordination, number)
                    steps = [curve.at(step) for step in range(len(curve.budgets))]
                    band(here, curve.budgets, steps, shade, coordination or system_title(system), style, marker)
                here.set_title(f"{method_title(method)} · {split_title(split)}")
                if row == len(places) - 1:
                    here.set_xlabel("labels in total")
                if column == 0:
                    here.set_ylabel(f"{book.title(set_name)}\ntest accuracy (%)")
                here.set_xticks(curve.budgets if curve else [])
                if column == len(book.methods) - 1 or coordination.startswith("noise"):
                    here.legend(loc="lower right", fontsize=8.5)
        headline(figure, book.experiment.title)
    return figure


def _shade(base: str, coordination: str, number: int) -> str:
    """Noise levels fade from the selector's colour towards grey; the rest keep it."""
    if not coordination.startswith("noise"):
        return base if coordination in ("central", "aggregate", "") else "#6d7583"
    level = min(1.0, float(coordination.removeprefix("noise ")))
    channels = [int(base[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(c + (200 - c) * 0.75 * level):02x}" for c in channels)
