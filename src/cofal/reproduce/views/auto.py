"""Auto against the better of central and per-client: a heat map over splits and numbers of clients."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from cofal.evaluation.statistics import estimate
from cofal.reproduce.auto_grid import Place, places
from cofal.reproduce.book import Book
from cofal.reproduce.naming import method_title, split_title
from cofal.reproduce.views.drawing import INK, headline, panels
from cofal.reproduce.views.page import Table, Value, View, shown

_LIMIT = 4.0  # percent at which the colours end
_COLUMNS = [
    "set", "method", "clients", "split", "seeds", "central", "per_client", "auto", "gap", "gap_low", "gap_high",
    "lead", "lead_low", "lead_high", "overlap", "central_wins", "foretold", "decisions",
]  # fmt: skip
_READING = (
    "Mean accuracy (%) over the budgets: central / per-client / auto, then auto less the better of the two in percent "
    "of it ± standard error over seeds. † : the sign of central − per-client is significant, and `advise` foretold "
    "it; ‡ : it is significant, and `advise` foretold the other. Beyond doubt: places whose 95 % interval is wholly "
    "below −1 %. The picture shows auto less the better of the two."
)


def view(book: Book) -> View:
    """One panel a set and selector; a table a set, and one of the means over the grid."""
    grid = places(book)
    sizes = sorted({place.clients for place in grid})
    by_key = {(place.set, place.method, place.clients, place.split): place for place in grid}
    tables = [_means(book, grid)]
    height = 1.1 + 0.55 * len(sizes)
    with panels(len(book.methods), len(book.sets), width=4.6, height=height) as (figure, axes):
        for row, name in enumerate(book.sets):
            for column, method in enumerate(book.methods):
                here = axes[row * len(book.methods) + column]
                lines = [[by_key.get((name, method, clients, split)) for split in book.splits] for clients in sizes]
                _heat(here, lines, [split_title(split).replace("α = ", "") for split in book.splits], sizes)
                here.set_title(f"{method_title(method)}\n{book.title(name)}", fontsize=9)
            tables.append(_table(book, name, by_key, sizes))
        headline(figure, "Auto less the better of central and per-client (% of area)")
    return View(tables, _COLUMNS, [_row(place) for place in grid], figure, _READING)


def _heat(axes: Axes, lines: list[list[Place | None]], splits: list[str], sizes: list[int]) -> None:
    values = np.array([[place.lead.mean if place else np.nan for place in line] for line in lines])
    axes.imshow(values, vmin=-_LIMIT, vmax=_LIMIT, cmap="RdBu", aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if np.isfinite(value):
                shade = "white" if abs(value) > 0.6 * _LIMIT else INK
                axes.text(column, row, f"{value:+.1f}", ha="center", va="center", fontsize=9, color=shade)
    axes.set_xticks(range(len(splits)), splits)
    axes.set_yticks(range(len(sizes)), [f"{clients} clients" for clients in sizes])
    axes.grid(visible=False)


def _means(book: Book, grid: list[Place]) -> Table:
    """Means over all places and seeds, by selector and set."""
    table = Table(
        ["selector", "set", "central", "per-client", "auto", "worst place", "below −1 %", "beyond doubt"], title="Means"
    )
    for method in book.methods:
        for name in [*book.sets, ""]:
            own = [place for place in grid if place.method == method and name in ("", place.set)]
            if not own or (name == "" and len(book.sets) == 1):
                continue
            means = [np.mean([getattr(place, kind).mean() for place in own]) for kind in _KINDS]
            leads = [place.lead.mean for place in own]
            best = int(np.argmax(means))
            shown_means = [f"**{mean:.2f}**" if k == best else f"{mean:.2f}" for k, mean in enumerate(means)]
            title = book.title(name) if name else "all"
            below = f"{sum(lead < -1 for lead in leads)} of {len(leads)}"
            surely = str(sum(place.lead.high < -1 for place in own))
            table.rows.append([method_title(method), title, *shown_means, f"{min(leads):+.1f} %", below, surely])
    return table


_KINDS = ("central", "per_client", "auto")


def _table(book: Book, name: str, by_key: dict[tuple[str, str, int, str], Place], sizes: list[int]) -> Table:
    table = Table(["selector", "clients", *map(split_title, book.splits)], title=book.title(name))
    for method in book.methods:
        for clients in sizes:
            found = [by_key.get((name, method, clients, split)) for split in book.splits]
            if any(found):
                table.rows.append([method_title(method), str(clients), *map(_entry, found)])
    return table


def _entry(place: Place | None) -> str:
    if place is None:
        return "–"
    means = " / ".join(f"{getattr(place, kind).mean():.1f}" for kind in _KINDS)
    mark = ("†" if place.foretold else "‡") if place.significant else ""
    return f"{means}; {shown(place.lead)} {mark}".strip()


def _row(place: Place) -> list[Value]:
    gap, lead = place.gap, place.lead
    areas = [float(getattr(place, kind).mean()) for kind in _KINDS]
    told = "" if not place.significant else "yes" if place.foretold else "no"
    return [
        place.set, place.method, place.clients, place.split, gap.n, *areas, gap.mean, gap.low, gap.high,
        lead.mean, lead.low, lead.high, estimate(place.overlap.tolist()).mean, float(place.central_wins.mean()), told,
        " ".join(place.decisions),
    ]  # fmt: skip
