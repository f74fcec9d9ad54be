"""The paper's own numbers, looked up by the names that our cells use."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from cofal.evaluation.curves import coordination_gap

_METHOD = {"ProbCover": "probcover", "TypiClust": "typiclust", "MaxHerding": "maxherding"}
_ROW = {"Centralized": "central", "Federated": "aggregate", "CentEmb per-client": "per-client"}
# The paper has these tables for CIFAR-100 alone; our set of 100 classes, with as many clients and labels, is held
# against them.
_CIFAR100_STANDS_FOR = ("cifar100", "imagenet100")


class Reported(NamedTuple):
    """Accuracy in percent and its standard error over three seeds."""

    mean: float
    error: float


@lru_cache(maxsize=1)
def _tables() -> dict[str, dict[tuple[str, str, str], list[tuple[int, Reported]]]]:
    """table -> (set, split, system) -> (budget, value) in the order of the budgets."""
    raw = json.loads((resources.files("cofal.reproduce") / "paper_tables.json").read_text(encoding="utf-8"))
    found: dict[str, dict[tuple[str, str, str], list[tuple[int, Reported]]]] = {name: {} for name in raw}
    for row in raw["full_pipeline"]:
        who, _, method = row["row"].rstrip(")").partition(" (")
        system = f"ono-{_METHOD[method]}" if who.startswith("Ono") else f"{_METHOD[method]}-central"
        for name in ("cifar10", "cifar100", "imagenet100"):
            found["full_pipeline"][name, row["split"], system] = _values(row[name])
    for table in ("aggregate_selection_iid", "same_embedding_iid"):
        for row in raw[table]:
            system = f"{_METHOD[row['selector']]}-{_ROW[row['row']]}"
            for name in ("cifar10", "cifar100", "imagenet100"):
                found[table][name, "iid", system] = _values(row[name])
    table = "same_embedding_dirichlet_cifar100"
    for row in raw[table]:
        system = f"{_METHOD[row['selector']]}-{_ROW[row['row']]}"
        for name in _CIFAR100_STANDS_FOR:
            for alpha in ("0.1", "1", "10"):
                found[table][name, f"dirichlet-{alpha}", system] = _values(row[alpha])
            found[table][name, "iid", system] = found["same_embedding_iid"]["cifar100", "iid", system]
    table = "perturbation_cifar100_iid"
    for row in raw[table]:
        level = row["epsilon"]
        kind = {"0.0": "central", "CentEmb per-client": "per-client"}.get(level, f"perturbed-{level}")
        for method, name_here in _METHOD.items():
            for name in _CIFAR100_STANDS_FOR:
                found[table][name, "iid", f"{name_here}-{kind}"] = _values(row[method])
    return found


def _values(entries: list[dict[str, Any]]) -> list[tuple[int, Reported]]:
    return [(entry["budget"], Reported(entry["mean"], entry["se"])) for entry in entries]


def reported(table: str, set_name: str, split: str, system: str, budget: int) -> Reported | None:
    """What the paper's `table` says, or None where it says nothing."""
    row = _tables().get(table, {}).get((set_name, split, system), [])
    return next((value for at, value in row if at == budget), None)


def reported_gap(table: str, set_name: str, split: str, better: str, other: str) -> float | None:
    """The empirical coordination gap (%) of the paper's mean accuracies at its three budgets."""
    rows = [_tables().get(table, {}).get((set_name, split, system)) for system in (better, other)]
    if rows[0] is None or rows[1] is None:
        return None
    budgets = [budget for budget, _ in rows[0]]
    return coordination_gap(budgets, *([value.mean for _, value in row] for row in rows if row))
