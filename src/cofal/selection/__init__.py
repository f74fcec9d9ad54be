"""Which rows to label: selectors over the clients' embeddings, under client budgets."""
