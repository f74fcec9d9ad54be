"""Redundancy against the number of alike clients, and against how unlike they are: predicted, simulated, measured."""

from __future__ import annotations

from cofal.evaluation.statistics import Estimate, estimate
from cofal.reproduce.book import Book
from cofal.reproduce.cells import REDUNDANCY
from cofal.reproduce.naming import colour, method_title, split_title
from cofal.reproduce.records import Record
from cofal.reproduce.views.drawing import band, headline, legend_below, panels
from cofal.reproduce.views.page import Table, Value, View, shown

_WAYS = {"random": ("predicted for random picks", "#6d7583"), "efficient": ("predicted for one pick a cell", "#1b2230")}


def view(book: Book) -> View:
    """Left: IID clients, more and more of them. Right: the same number of clients, more and more unlike."""
    rows: list[list[Value]] = []
    tables = []
    unlike = [split for split in ("iid", "dirichlet-10", "dirichlet-1", "dirichlet-0.1") if split in book.splits]
    with panels(2 * len(book.sets), width=5.4, height=3.9) as (figure, axes):
        for number, set_name in enumerate(book.sets):
            cells = [record.cell for record in book.records if record.cell.set == set_name]
            counts = sorted({cell.clients for cell in cells if cell.on.name == "iid"})
            few = min(cell.clients for cell in cells if cell.on.name != "iid")
            left: list[tuple[str, int]] = [("iid", clients) for clients in counts]
            right: list[tuple[str, int]] = [(split, few) for split in unlike]
            for side, points in enumerate((left, right)):
                here = axes[2 * number + side]
                x = [clients for _, clients in points] if side == 0 else list(range(len(points)))
                heads = [f"{k} clients" if side == 0 else split_title(split) for split, k in points]
                label = book.title(set_name) + (", IID clients" if side == 0 else f", {few} clients")
                table = Table(["redundancy (cells)", *heads], title=label)
                for system in book.systems:
                    values = [_measured(book.of(set_name, split, system, k)) for split, k in points]
                    method = system.removeprefix(REDUNDANCY)
                    band(here, x, values, colour(method), f"measured, {method_title(method)}")
                    table.rows.append([f"measured, {method_title(method)}", *map(shown, values)])
                    rows += [
                        [set_name, split, k, method, value.n, value.mean, value.standard_error]
                        for (split, k), value in zip(points, values)
                    ]
                for way, (name, shade) in _WAYS.items():
                    foretold = [_predicted(book.of(set_name, split, book.systems[0], k), way) for split, k in points]
                    here.plot(x, [value.mean for value in foretold], "--", color=shade, linewidth=1.6, label=name)
                    table.rows.append([name, *map(shown, foretold)])
                    rows += [
                        [set_name, split, k, f"predicted-{way}", value.n, value.mean, value.standard_error]
                        for (split, k), value in zip(points, foretold)
                    ]
                tables.append(table)
                here.set_title(label)
                here.set_xticks(x, [str(k) for _, k in points] if side == 0 else heads)
                here.set_xlabel("number of clients" if side == 0 else "clients: alike → unlike")
                here.set_ylim(bottom=0)
            axes[2 * number].set_ylabel("redundancy Σ Φ(Sₖ) − Φ(∪ Sₖ)\n(cells covered more than once)")
        legend_below(figure, axes[0], 3)
        headline(figure, book.experiment.title)
    columns = ["set", "split", "clients", "series", "seeds", "redundancy", "error"]
    reading = (
        "Cells of the embedding space (k-means) that clients choosing alone cover more than once, each counted for "
        "every client beyond the first; mean ± standard error over seeds. Predictions use cell histograms only."
    )
    return View(tables, columns, rows, figure, reading)


def _measured(records: list[Record]) -> Estimate:
    return estimate([record.result["redundancy"] for record in records])


def _predicted(records: list[Record], way: str) -> Estimate:
    return estimate([record.result[f"predicted_{way}"]["redundancy"] for record in records])
