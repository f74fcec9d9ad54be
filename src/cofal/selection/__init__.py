"""Which rows to label: selectors over the clients' embeddings, under client budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cofal.selection.api import select

__all__ = ["select"]


def __getattr__(name: str) -> Any:
    """`select` loads torch on first use; what a run's settings allow in numbers (`numbers.py`) is read without."""
    if name == "select":
        from cofal.selection.api import select

        return select
    raise AttributeError(f"module 'cofal.selection' has no attribute {name!r}")
