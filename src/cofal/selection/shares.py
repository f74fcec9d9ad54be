"""How a total budget is divided among clients: whole numbers that never shrink when the total grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cofal.errors import UserError


def divide(total: int, weights: Sequence[float], capacity: Sequence[int]) -> list[int]:
    """Split `total` labels in proportion to `weights`, no client above its `capacity` (samples it can still offer).

    Seats are given one by one to the client with the largest weight / (2 seats + 1) (the Sainte-Lague rule; ties to the
    first), so the split of a larger total contains that of a smaller one: cumulative budgets stay cumulative.
    """
    if total > sum(room for room, weight in zip(capacity, weights, strict=True) if weight > 0):
        raise UserError(
            f"budget {total} is above what the clients can offer ({list(capacity)} samples); lower the budget"
        )
    weight = np.asarray(weights, dtype=np.float64)
    room = np.asarray(capacity, dtype=np.int64)
    seats = np.zeros(len(weight), dtype=np.int64)
    for _ in range(total):
        claim = np.where(seats < room, weight / (2 * seats + 1), -1.0)
        seats[int(np.argmax(claim))] += 1
    return [int(count) for count in seats]
