"""How a total budget is divided among clients: whole numbers that never shrink when the total grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cofal.errors import UserError


def divide(
    total: int, weights: Sequence[float], capacity: Sequence[int], given: Sequence[int] | None = None
) -> list[int]:
    """Split `total` labels in proportion to `weights`, no client above its `capacity` (samples it can still offer).

    Seats are given one by one to the client with the largest weight / (2 seats + 1) (the Sainte-Lague rule; ties to the
    first), so the split of a larger total contains that of a smaller one: cumulative budgets stay cumulative. `given`
    are seats given before, which count; what is returned, and `total`, contain them. A client ahead of its share
    (others were away) keeps what it has, and the next seats go to those behind.
    """
    seats = np.array(given if given is not None else [0] * len(weights), dtype=np.int64)
    free = [max(room - had, 0) for room, had in zip(capacity, seats, strict=True)]
    if total - int(seats.sum()) > sum(room for room, weight in zip(free, weights, strict=True) if weight > 0):
        raise UserError(
            f"budget {total} is above what the clients can offer ({list(capacity)} samples); lower the budget"
        )
    weight = np.asarray(weights, dtype=np.float64)
    room = np.asarray(capacity, dtype=np.int64)
    for _ in range(total - int(seats.sum())):
        claim = np.where(seats < room, weight / (2 * seats + 1), -1.0)
        seats[int(np.argmax(claim))] += 1
    return [int(count) for count in seats]
