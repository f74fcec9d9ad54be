"""What depends on the rows of a pool alone, kept for the next selection: clients select again and again over the same
rows, and only what is labelled changes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from cofal.rng import generator
from cofal.selection.kmeans import content_hash
from cofal.selection.pool import Pool

Found = TypeVar("Found")


def once_per_rows(measure: Callable[[Pool], Found]) -> Callable[[Pool], Found]:
    """`measure`, which looks at the rows of a pool and whose they are, with its last result kept."""
    kept: dict[str, Found] = {}

    @functools.wraps(measure)
    def remembering(pool: Pool) -> Found:
        rows = content_hash(pool, generator(0, "remember"))
        key = hashlib.sha256(np.asarray(pool.offsets).tobytes() + rows.tobytes()).hexdigest()
        if key not in kept:
            found = measure(pool)
            kept.clear()
            kept[key] = found
        return kept[key]

    return remembering
