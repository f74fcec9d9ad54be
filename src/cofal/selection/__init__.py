"""Which rows to label: selectors over the clients' embeddings, under client budgets."""

from cofal.selection.api import select

__all__ = ["select"]
