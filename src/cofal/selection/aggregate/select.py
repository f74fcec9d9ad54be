"""An aggregate selection whose clients are all in this process: what `cofal.select(coordination="aggregate")` runs."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.rng import generator
from cofal.selection.aggregate.exchange import Consortium, Exchanged, Holder, Method, run
from cofal.selection.pool import Budgets, Pool

METHODS = ("probcover", "typiclust", "maxherding")


def aggregate_method(name: object) -> Method:
    """Both halves of the selector `name`."""
    if name not in METHODS:
        raise UserError(
            f"{name!r} has no aggregate form; use one of {', '.join(METHODS)}, or coordination = 'per-client'"
        )
    method: Method = getattr(importlib.import_module(f"cofal.selection.aggregate.{name}"), str(name).upper())
    return method


def consortium_of(pool: Pool, budgets: Budgets) -> tuple[Consortium, list[Holder]]:
    """The clients of a pool as both sides of an exchange: what the coordinator knows, and the holders."""
    spans = list(zip(pool.offsets[:-1].tolist(), pool.offsets[1:].tolist()))
    holders = [Holder(pool.tile(a, b).cpu().numpy(), pool.labeled[a:b]) for a, b in spans]
    members = Consortium(
        sizes=[b - a for a, b in spans],
        labeled=[int(holder.taken.sum()) for holder in holders],
        budgets=budgets.per_client.tolist(),
        dimensions=pool.d,
    )
    return members, holders


def aggregate(
    method: Method, pool: Pool, budgets: Budgets, seed: int, params: dict[str, Any]
) -> tuple[list[np.ndarray], list[tuple[int, int]], Exchanged]:
    """Each client's positions in the order picked, the order over all clients, and what was exchanged for it."""
    members, holders = consortium_of(pool, budgets)
    clients, cost = run(method.coordinate(members, generator(seed, "select"), **params), holders, method.answer)
    picked = [np.empty(0, dtype=np.int64) if holder.picked is None else holder.picked for holder in holders]
    turn = [iter(positions.tolist()) for positions in picked]
    return picked, [(client, next(turn[client])) for client in clients], cost
