"""Claims 4 and 5: what noise costs, and what aggregates keep."""

from __future__ import annotations

from cofal.evaluation.statistics import estimate
from cofal.reproduce.book import Book
from cofal.reproduce.claims.checks import Check, above, below
from cofal.reproduce.naming import method_title

CLOSE = 3.0  # percent of area: what "close to central" means
HARMLESS = 1.0  # points of accuracy: a smaller loss is called none, even where it is significant


def perturbation(book: Book) -> list[Check]:
    """TypiClust and MaxHerding: mean accuracy over budgets with noise less that without."""
    checks = []
    for method in ("typiclust", "maxherding"):
        for system in book.systems:
            level = system.removeprefix(f"{method}-perturbed-")
            if level == system or float(level) > 0.6:
                continue
            losses: list[float] = []
            for name in book.sets:
                noised, plain = book.curves(name, "iid", system), book.curves(name, "iid", f"{method}-central")
                assert noised is not None
                assert plain is not None
                losses += [a - b for a, b in zip(noised.heights(), plain.heights(), strict=True)]
            found = estimate(losses)
            what = f"{method_title(method)}, ε = {level}: with noise − without"
            checks.append(
                Check(what, found, "points", found.high >= 0 or found.mean > -HARMLESS, found.low > -HARMLESS)
            )
    return checks


def aggregate(book: Book) -> list[Check]:
    def gaps(method: str, better: str, other: str) -> list[float]:
        return [gap for name in book.sets for gap in book.gaps(name, "iid", f"{method}-{better}", f"{method}-{other}")]

    checks = [
        below(f"FederatedTypiClust: lost against central (close: under {CLOSE:g} %)",
              gaps("typiclust", "central", "aggregate"), "%", CLOSE)
    ]  # fmt: skip
    checks += [
        above(
            f"Federated{method_title(method)}: gained over choosing alone", gaps(method, "aggregate", "per-client"), "%"
        )
        for method in ("typiclust", "probcover")
    ]
    return checks
