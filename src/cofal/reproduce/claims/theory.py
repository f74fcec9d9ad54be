"""The theory's claim: redundancy grows with alike clients, falls with unlike ones, and its formula is right."""

from __future__ import annotations

import numpy as np

from cofal.evaluation.statistics import estimate
from cofal.reproduce.book import Book
from cofal.reproduce.cells import REDUNDANCY
from cofal.reproduce.claims.checks import Check, above
from cofal.reproduce.naming import method_title

NEAR = 0.1  # how far from 1 measured over predicted may be


def redundancy(book: Book) -> list[Check]:
    """Closed form against simulation, growth with alike clients, fall with unlike ones, prediction against picks."""
    apart = [
        (told["simulated"] - told["redundancy"]) / max(told["simulated_error"], 1e-9)
        for record in book.records
        for told in (record.result["predicted_random"], record.result["predicted_efficient"])
    ]
    found = estimate(apart)
    # Standard normal if the formula is right: a mean beyond 3 / sqrt(n) or a value beyond 5 would be no chance.
    agree = max(map(abs, apart)) < 5 and abs(found.mean) * found.n**0.5 < 3
    checks = [Check("simulated − closed form, in standard errors", found, "", agree, agree)]
    ratio = estimate(_measured_over_predicted(book))
    near, surely = abs(ratio.mean - 1) < NEAR, abs(ratio.low - 1) < NEAR and abs(ratio.high - 1) < NEAR
    checks.append(Check("random picks: redundancy measured / predicted", ratio, "", near, surely))
    for name in book.sets:
        counts = sorted({record.cell.clients for record in book.records if record.cell.on.name == "iid"})
        few = min(record.cell.clients for record in book.records if record.cell.on.name != "iid")
        for system in book.systems:
            method = method_title(system.removeprefix(REDUNDANCY))
            grown = [_redundancies(book, name, "iid", system, clients) for clients in counts]
            slopes = [float(np.polyfit(counts, path, 1)[0]) for path in zip(*grown, strict=True)]
            checks.append(above(f"{method}: redundancy per further alike client", slopes, "cells"))
            alike = _redundancies(book, name, "iid", system, few)
            unlike = _redundancies(book, name, "dirichlet-0.1", system, few)
            falls = [a - b for a, b in zip(alike, unlike, strict=True)]
            checks.append(above(f"{method}: redundancy, IID − α = 0.1", falls, "cells"))
    return checks


def _measured_over_predicted(book: Book) -> list[float]:
    """Of each seed, over all splits and numbers of clients: what random picks show over what histograms foretell."""
    sums: dict[int, np.ndarray] = {}
    for record in book.records:
        if record.cell.system == f"{REDUNDANCY}random":
            pair = [record.result["redundancy"], record.result["predicted_random"]["redundancy"]]
            sums[record.cell.seed] = sums.get(record.cell.seed, np.zeros(2)) + pair
    return [float(measured / predicted) for measured, predicted in sums.values()]


def _redundancies(book: Book, name: str, split: str, system: str, clients: int) -> list[float]:
    return [float(record.result["redundancy"]) for record in book.of(name, split, system, clients)]
