"""Claims 1 to 3: what coordination is worth, alike and unlike, alone and in the whole pipeline."""

from __future__ import annotations

import numpy as np

from cofal.reproduce.book import Book
from cofal.reproduce.cells import OWN
from cofal.reproduce.claims.checks import Check, above, below, of_the_paper
from cofal.reproduce.naming import method_title, split_title


def iid_gap(book: Book) -> list[Check]:
    return [
        above(
            f"gap of {method_title(method)}, all sets",
            [gap for name in book.sets for gap in book.gaps(name, "iid", *book.pair(method))],
            "%",
        )
        for method in of_the_paper(book)
    ]


def heterogeneity(book: Book) -> list[Check]:
    """The gap against the step from alike to unlike: its slope, its fall from end to end, and its lowest point."""
    order = [split for split in ("iid", "dirichlet-10", "dirichlet-1", "dirichlet-0.1") if split in book.splits]
    checks = []
    for name in book.sets:
        paths = [
            path
            for method in of_the_paper(book)
            for path in zip(*(book.gaps(name, split, *book.pair(method)) for split in order), strict=True)
        ]
        slopes = [float(np.polyfit(range(len(order)), path, 1)[0]) for path in paths]
        checks.append(below(f"change of the gap per step towards unlike clients, {book.title(name)}", slopes, "%"))
    places = [(name, split, method) for name in book.sets for split in order for method in of_the_paper(book)]
    lowest = min(places, key=lambda place: np.mean(book.gaps(place[0], place[1], *book.pair(place[2]))))
    name, split, method = lowest
    checks.append(
        below(
            f"lowest gap: {method_title(method)}, {split_title(split)}, {book.title(name)}",
            book.gaps(name, split, *book.pair(method)),
            "%",
        )
    )
    return checks


def pipeline(book: Book) -> list[Check]:
    """Under IID, at every budget, over the three selectors."""
    checks = []
    for name in book.sets:
        differences = _differences(book, name, "iid")
        checks += [
            above(f"ours − own encoders at {budget} labels, {book.title(name)}", values, "points")
            for budget, values in differences.items()
        ]
    return checks


def _differences(book: Book, name: str, split: str) -> dict[int, list[float]]:
    """budget -> accuracy of ours less that of own encoders, for every selector and seed."""
    found: dict[int, list[float]] = {}
    for method in of_the_paper(book):
        ours, theirs = book.curves(name, split, f"{method}-central"), book.curves(name, split, f"{OWN}{method}")
        assert ours is not None
        assert theirs is not None
        for step, budget in enumerate(ours.budgets):
            found.setdefault(budget, []).extend(
                a[step] - b[step] for a, b in zip(ours.accuracy, theirs.accuracy, strict=True)
            )
    return found


def pipeline_noniid(book: Book) -> list[Check]:
    """The gap of the whole pipeline is smaller under unlike clients."""
    return [
        above(
            f"gap under IID − gap at α = 0.1, {book.title(name)}",
            [
                alike - unlike
                for method in of_the_paper(book)
                for alike, unlike in zip(
                    book.gaps(name, "iid", *book.pair(method)),
                    book.gaps(name, "dirichlet-0.1", *book.pair(method)),
                    strict=True,
                )
            ],
            "%",
        )
        for name in book.sets
        if book.gaps(name, "dirichlet-0.1", *book.pair(of_the_paper(book)[0]))
    ]
