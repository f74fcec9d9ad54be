"""Accuracy against a growing number of labels: few coordinated ones, and methods made for many."""

from __future__ import annotations

from cofal.reproduce.book import Book
from cofal.reproduce.naming import METHODS, colour, method_of, system_title
from cofal.reproduce.views.drawing import INK, SOFT, band, headline, panels
from cofal.reproduce.views.page import Table, Value, View, best, shown

_MARKERS = {"kafal": "s", "logo": "D", "f-al-entropy": "^", "f-al-margin": "v", "s-al-entropy": "<", "random": "P"}


def view(book: Book) -> View:
    """Curves on a logarithmic axis; the dashed line is what coordinated ProbCover reaches with ten labels a class."""
    rows: list[list[Value]] = []
    tables = []
    with panels(len(book.sets), width=8.6, height=4.6) as (figure, axes):
        for here, set_name in zip(axes, book.sets):
            curves = {system: book.curves(set_name, "iid", system) for system in book.systems}
            known = {system: curve for system, curve in curves.items() if curve is not None}
            budgets = next(iter(known.values())).budgets
            table = Table(["system", *(f"{budget} labels" for budget in budgets)], title=book.title(set_name))
            winners = [best([curve.at(step) for curve in known.values()]) for step in range(len(budgets))]
            for place, (system, curve) in enumerate(known.items()):
                values = [curve.at(step) for step in range(len(budgets))]
                ours = method_of(system) in METHODS
                band(
                    here,
                    budgets,
                    values,
                    colour(system),
                    system_title(system),
                    "-" if ours else "--",
                    _MARKERS.get(system, "o"),
                )
                table.rows.append(
                    [system_title(system), *(shown(v, bold=winners[s] == place) for s, v in enumerate(values))]
                )
                rows += [
                    [set_name, system, budget, value.n, value.mean, value.standard_error, value.low, value.high]
                    for budget, value in zip(budgets, values)
                ]
            tables.append(table)
            few = book.scale.sets[set_name].budgets[-1]
            if "probcover-central" in known and few in budgets:
                level = known["probcover-central"].at(budgets.index(few)).mean
                here.axhline(level, color=INK, linestyle=(0, (4, 3)), linewidth=1.2)
                here.annotate(f"coordinated ProbCover with {few} labels", (budgets[0], level), xytext=(0, 4),
                              textcoords="offset points", ha="left", va="bottom", fontsize=9, color=SOFT)  # fmt: skip
            here.set_xscale("log")
            here.set_xticks(budgets, [f"{budget:,}" for budget in budgets])
            here.minorticks_off()
            here.set_xlabel("labels in total (logarithmic)")
            here.set_title(book.title(set_name))
            here.set_ylabel("test accuracy (%)")
            here.legend(loc="lower right", ncols=2, fontsize=9)
        headline(figure, book.experiment.title)
    columns = ["set", "system", "budget", "seeds", "accuracy", "error", "low", "high"]
    return View(
        tables, columns, rows, figure, "Test accuracy in percent, mean ± standard error over seeds; bold: the best."
    )
