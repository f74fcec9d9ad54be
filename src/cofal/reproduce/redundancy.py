"""The cells of `cofal reproduce theory`: redundancy of clients that choose alone, measured, predicted and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cofal.baselines.system import Federation
from cofal.evaluation.picks import histograms, measure
from cofal.evaluation.theory import (
    best_coverage,
    hit_probabilities,
    local_coverage,
    redundancy_gap,
    simulate,
)
from cofal.reproduce.cells import REDUNDANCY, Cell
from cofal.rng import generator
from cofal.selection import select

DRAWS = 2000  # of the Monte-Carlo check


def redundancy(
    cell: Cell, federation: Federation, cells_of: list[np.ndarray], cells: int, budgets: Sequence[int]
) -> dict[str, Any]:
    """Redundancy of the clients' own picks, beside what their cell histograms foretell under two ways of picking."""
    method = cell.system.removeprefix(REDUNDANCY)
    params = dict(cell.params.get(method, {}))
    seeds = [cell.seed]
    if draws := params.pop("draws", 0):
        seeds = generator(cell.seed, "theory", cell.title, "picks").integers(2**31, size=(int(draws),)).tolist()
    seen = [
        measure(
            select(federation.embeddings, budgets, method, "per-client", seed=seed, **params).order,
            cells_of,
            federation.labels,
            federation.classes,
        )
        for seed in seeds
    ]
    counts = histograms(cells_of, cells)
    found: dict[str, Any] = {
        "cells": cells,
        "redundancy": float(np.mean([each.redundancy for each in seen])),
        "coverage": float(np.mean([each.coverage for each in seen])),
        "local_coverage": float(np.mean([each.local_coverage for each in seen])),
        "best_coverage": best_coverage(counts, budgets),
    }
    for way in ("random", "efficient"):
        chances = np.stack([hit_probabilities(own, int(due), way) for own, due in zip(counts, budgets)])
        drawn = simulate(chances, DRAWS, generator(cell.seed, "theory", cell.title, way))
        found[f"predicted_{way}"] = {
            "redundancy": round(redundancy_gap(chances), 6),
            "local_coverage": round(local_coverage(chances), 6),
            "simulated": round(drawn.redundancy, 6),
            "simulated_error": round(drawn.redundancy_error, 6),
        }
    return found
