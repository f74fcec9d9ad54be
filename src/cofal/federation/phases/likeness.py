"""Phase II under `auto` from aggregates: how alike the sites are, who then chooses with whom, what a site is worth.

The decision itself is `selection/auto.py`'s; here are the questions that carry it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cofal.config import Config
from cofal.federation.fleet import Fleet
from cofal.federation.phases.aggregating import Task, consortium_of, converse, select_from_aggregates
from cofal.federation.phases.overheard import Overheard
from cofal.rng import generator
from cofal.rundir import RunDir
from cofal.selection.auto import Decision, decision_stream, in_turns
from cofal.selection.auto_aggregate import ALONE, alone, holdings, likeness
from cofal.selection.pool import Pool
from cofal.selection.worth import as_weights, number_of_worth_cells, weights_by_worth

LIKENESS = "likeness"  # the method that a site is told while it is only measured


def measure_likeness(fleet: Fleet, config: Config, task: Task, dimension: int) -> Decision:
    """Who chooses with whom, from federated k-means and each site's counts; at most 7 round trips."""
    asked = replace(task, method=LIKENESS)
    least = config.selection.min_region
    decision: Decision = converse(
        fleet, asked, likeness(consortium_of(fleet, task, dimension), decision_stream(), min_region=least)
    )
    return decision


def choose_as_alike(
    fleet: Fleet, config: Config, run: RunDir, task: Task, dimension: int, seed: int, first: int, params: dict[str, Any]
) -> tuple[list[str], Decision]:
    """The site of each pick in the order picked, and the decision behind it.

    Sites of one group choose by the aggregate selector; whoever is alone picks for itself and tells nothing. `first`:
    rank of the selection's first pick; `params`: of the method.
    """
    decision = measure_likeness(fleet, config, task, dimension)
    names = fleet.names
    told = replace(task, decision=decision.in_words())
    found: dict[int, list[str]] = {}
    for number, group in enumerate(decision.groups):
        if len(group) > 1:
            part = _part(fleet, [names[client] for client in group])
            heard = Overheard(task.method, part.names, dimension)
            whole = config.selection.aggregate_params(task.method)
            found[number] = select_from_aggregates(part, told, dimension, seed, whole, secure=False, heard=heard)
            if len(decision.groups) == 1:
                heard.keep(run, task.track, first, found[number])
    single = {names[group[0]]: number for number, group in enumerate(decision.groups) if len(group) == 1}
    if single:
        part = _part(fleet, list(single))
        asked = replace(told, method=ALONE + task.method)
        exchange = alone(consortium_of(part, task, dimension), generator(seed, "select"), seed=seed, **params)
        for client in converse(part, asked, exchange):
            found.setdefault(single[part.names[client]], []).append(part.names[client])
    parts = [found.get(number, []) for number in range(len(decision.groups))]
    order = in_turns([len(part) for part in parts], [len(group) for group in decision.groups])
    flat = [name for part in parts for name in part]
    return [flat[place] for place in order], decision


def site_worth(
    fleet: Fleet, config: Config, task: Task, dimension: int, embeddings: Mapping[str, np.ndarray], labels: int
) -> list[float]:
    """Each site's weight when `labels` are divided by what its samples can add, from what the sites shared or tell."""
    rng = generator(config.seed, "worth")
    if all(name in embeddings for name in fleet.names):
        return weights_by_worth(Pool([embeddings[name] for name in fleet.names]), labels, rng)
    consortium = consortium_of(fleet, task, dimension)
    cells = number_of_worth_cells(labels, sum(consortium.sizes))
    least = config.selection.min_region
    counts, _ = converse(
        fleet, replace(task, method=LIKENESS), holdings(consortium, cells, rng, min_region=least, blurred=False)
    )
    return as_weights(counts)


def _part(fleet: Fleet, names: list[str]) -> Fleet:
    """The fleet of some of the sites; what is counted and who is missing is noted in the whole one."""
    return replace(fleet, members={name: fleet.members[name] for name in names})
