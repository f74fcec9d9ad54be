"""The claim about auto: never far below the better of central and per-client, above both on average, and foretold."""

from __future__ import annotations

from cofal.evaluation.statistics import estimate
from cofal.reproduce.auto_grid import Place, places
from cofal.reproduce.book import Book
from cofal.reproduce.claims.checks import Check, above, of_the_paper
from cofal.reproduce.naming import method_title, split_title

FAR = 1.0  # percent of area: what auto may lose to the better of the two
FORETOLD = 0.9  # share of significant gaps whose sign `advise` tells


def auto(book: Book) -> list[Check]:
    grid = [place for place in places(book) if place.method in of_the_paper(book)]
    checks = []
    for method in of_the_paper(book):
        own = [place for place in grid if place.method == method]
        for kind, other in (("central", lambda p: p.central), ("per-client", lambda p: p.per_client)):
            values = [value for place in own for value in place.over(other(place))]
            checks.append(above(f"{method_title(method)}: auto − {kind}, mean of the grid", values, "%"))
    worst = min(grid, key=lambda place: place.lead.mean)
    found = worst.lead
    what = f"worst place, auto − the better of the two (bar: −{FAR:g} %): {_name(book, worst)}"
    checks.append(Check(what, found, "%", found.mean >= -FAR, found.low >= -FAR))
    signs = [place for place in grid if place.significant]
    if signs:
        right = estimate([float(place.foretold) for place in signs])
        what = f"share of significant gaps whose sign `advise` foretold (bar: {FORETOLD:g})"
        checks.append(Check(what, right, "", right.mean >= FORETOLD, right.low >= FORETOLD))
    return checks


def _name(book: Book, place: Place) -> str:
    on = f"{book.title(place.set)}, {split_title(place.split)}, {place.clients} clients"
    return f"{method_title(place.method)} on {on}"
