"""The loop that every system runs in: pick up to a budget, train, measure, go on to the next budget.

A system is a way to choose and a way to fit; here are the loop and what most of them share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cofal.baselines.system import Federation, Outcome
from cofal.errors import UserError
from cofal.learning.federated_head import LocalTraining, federated_head
from cofal.learning.head import Head, predict_proba
from cofal.rng import generator
from cofal.selection import select

Labelled = list[list[int]]  # positions picked so far, one list per client
Order = list[tuple[int, int]]  # (client, position) in the order picked


@dataclass(frozen=True)
class Fitted:
    """A system's classifier at one budget."""

    heads: list[Head | None]  # the federated one alone; or one per client, None where a client has no label
    test: np.ndarray  # (t, classes) probabilities of the test rows


@dataclass(frozen=True)
class Turn:
    """One step of a system: what is labelled, how many labels each client may add, and the classifier so far."""

    federation: Federation
    labelled: Labelled
    wanted: list[int]
    seed: int  # of this step's selection
    before: Fitted | None  # None at the first step, when nothing is labelled


Choose = Callable[[Turn], Order]
Fit = Callable[[Federation, Labelled, int], Fitted]


def play(federation: Federation, budgets: Sequence[Sequence[int]], seed: int, choose: Choose, fit: Fit) -> Outcome:
    """Run a system over cumulative `budgets` (one number per client at each step); every step keeps earlier picks."""
    check_budgets(federation, budgets)
    labelled: Labelled = [[] for _ in range(federation.clients)]
    order: Order = []
    fitted: Fitted | None = None
    accuracy, seconds = [], []
    for step in budgets:
        clock = time.perf_counter()
        wanted = [int(due) - len(own) for due, own in zip(step, labelled)]
        # The stream of a run's selections, so that a simulated system picks what the pipeline would.
        step_seed = int(generator(seed, "select", sum(step)).integers(2**31))
        if any(wanted):
            turn = Turn(federation, [list(own) for own in labelled], wanted, step_seed, fitted)
            order += _checked(choose(turn), turn)
        for client, own in enumerate(labelled):
            own[:] = [position for owner, position in order if owner == client]
        fitted = fit(federation, labelled, seed)
        accuracy.append(float((fitted.test.argmax(axis=1) == federation.test_labels).mean()))
        seconds.append(time.perf_counter() - clock)
    return Outcome(order, [int(sum(step)) for step in budgets], accuracy, seconds)


def check_budgets(federation: Federation, budgets: Sequence[Sequence[int]]) -> None:
    """Refuse budgets that are not one number per client, that fall, or that ask for more than a client has."""
    earlier = [0] * federation.clients
    for step in budgets:
        if len(step) != federation.clients:
            raise UserError(f"budgets {list(step)} are for {len(step)} clients of {federation.clients}; give one each")
        for client, (low, high) in enumerate(zip(earlier, step)):
            if high < low:
                raise UserError(f"the budget of client {client} falls from {low} to {high}; budgets are cumulative")
            size = len(federation.labels[client])
            if high > size:
                raise UserError(f"the budget of client {client} is {high} but it has {size} rows; lower it")
        earlier = [int(due) for due in step]


def _checked(order: Order, turn: Turn) -> Order:
    """A user's own system may err: too few, too many or repeated picks would make its curve a lie."""
    for client, (wanted, labelled) in enumerate(zip(turn.wanted, turn.labelled)):
        own = [position for owner, position in order if owner == client]
        if len(own) != wanted or len({*own, *labelled}) != wanted + len(labelled):
            raise UserError(
                f"the system picked {len(own)} rows of client {client}, {len({*own} - {*labelled})} of them new, "
                f"where {wanted} were due; pick each row once and as many as the budget says"
            )
    return order


def fit_federated(federation: Federation, labelled: Labelled, seed: int, local: LocalTraining | None = None) -> Fitted:
    """One head trained by all clients on the shared embeddings of what they labelled.

    In a `pooled` federation one party trains on all labels. Where every client takes one full-batch step a round, as
    by default, the mean of their steps is the step on all labels: the same head up to rounding, at one client's cost.
    """
    rows = [own[picked] for own, picked in zip(federation.embeddings, labelled)]
    labels = [own[picked] for own, picked in zip(federation.labels, labelled)]
    if federation.pooled:
        rows, labels = [np.concatenate(rows)], [np.concatenate(labels)]
    head = federated_head(rows, labels, federation.classes, federation.train, seed=seed, local=local)
    return Fitted([head], predict_proba(head, federation.test))


def fit_alone(federation: Federation, client: int, labelled: Sequence[int], seed: int, rows: np.ndarray) -> Head | None:
    """The head that one client trains without the others on its `rows`, by the same recipe; None without labels."""
    if not labelled:
        return None
    picked = list(labelled)
    labels = federation.labels[client][picked]
    return federated_head(
        [rows[picked]], [labels], federation.classes, federation.train, seed=seed, names=[f"site-{client}"]
    )


def random_start(turn: Turn) -> Order:
    """The picks of a system that asks a model, where there is no model yet: those of the system `random`."""
    labelled = [np.array(own, dtype=np.int64) for own in turn.labelled]
    return select(
        turn.federation.embeddings, turn.wanted, "random", "per-client", labeled=labelled, seed=turn.seed
    ).order


def interleave(lists: Sequence[Sequence[int]]) -> Order:
    """One order of what clients picked alone: all first picks, then all second ones."""
    longest = max(map(len, lists), default=0)
    return [(client, int(own[rank])) for rank in range(longest) for client, own in enumerate(lists) if rank < len(own)]


def free_rows(turn: Turn, client: int) -> np.ndarray:
    """The positions of a client's rows that have no label, ascending."""
    free = np.ones(len(turn.federation.labels[client]), dtype=bool)
    free[turn.labelled[client]] = False
    return np.flatnonzero(free)
