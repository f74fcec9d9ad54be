"""Claims of the paper, and one beyond it, each checked on the records of a page, with a verdict from intervals.

A claim is a list of checks: an estimate with its 95 % interval (Student's t over seeds, or over sets and seeds),
whether it points the claimed way, and whether its interval leaves no doubt of that. Here are the claims by name; the
checks are in the files beside this one.
"""

from __future__ import annotations

from cofal.reproduce.book import Book
from cofal.reproduce.claims import auto, budgets, coordination, sharing, theory
from cofal.reproduce.claims.checks import Claim, Verdict

CLAIMS = {
    "iid-gap": Claim(
        1,
        "table-same-embedding",
        "Under IID clients the coordination gap is positive for all three selectors.",
        coordination.iid_gap,
    ),
    "heterogeneity": Claim(
        2,
        "fig-alpha",
        "The gap falls as clients grow unlike (IID, alpha 10, 1, 0.1), and turns negative somewhere.",
        coordination.heterogeneity,
    ),
    "pipeline": Claim(
        3,
        "table-full-pipeline",
        "Under IID clients the whole pipeline beats the Ono-style baseline at every budget.",
        coordination.pipeline,
    ),
    "pipeline-noniid": Claim(
        3,
        "fig-gap-noniid",
        "The whole pipeline's gap over the Ono-style baseline is smaller under unlike clients.",
        coordination.pipeline_noniid,
    ),
    "perturbation": Claim(
        4,
        "table-perturbation",
        "Perturbation up to 0.6 costs TypiClust and MaxHerding nothing significant.",
        sharing.perturbation,
    ),
    "aggregate": Claim(
        5,
        "table-aggregate",
        "FederatedTypiClust comes close to central selection, and both federated selectors beat choosing alone.",
        sharing.aggregate,
    ),
    "high-budget": Claim(
        6,
        "fig-high-budget",
        "Coordinated selection with few labels matches KAFAL and LoGo with several times the labels.",
        budgets.high_budget,
    ),
    "uncertainty": Claim(
        7,
        "fig-high-budget",
        "Uncertainty selectors lose to diversity selectors at low budgets and overtake them at high ones.",
        budgets.uncertainty,
    ),
    "redundancy": Claim(
        8,
        "theory",
        "Redundancy grows with the number of alike clients and falls as clients grow unlike; the closed form is right.",
        theory.redundancy,
    ),
    "auto": Claim(
        9,
        "auto",
        "Beyond the paper: auto is nowhere far below the better of central and per-client, above both on average for "
        "every selector, and `cofal advise` foretells which of the two wins.",
        auto.auto,
    ),
}


def verdict(name: str, book: Book) -> Verdict:
    claim = CLAIMS[name]
    return Verdict(claim, claim.checks(book))
