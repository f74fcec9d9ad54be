"""The former name of `Pool.in_memory`, for callers that still use it."""

from __future__ import annotations

from cofal.selection.pool import Pool


def UnitRows(pool: Pool) -> Pool:
    return pool.in_memory()
