"""Clients for tests of aggregate selection, and a selection whose budgets are checked."""

import numpy as np

from cofal.selection.aggregate.exchange import Consortium, Holder, run


def parts_of(seed, sizes, d=8, groups=12, spread=0.4):
    """Unit rows of each client, drawn around the same centres."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(groups, d))
    parts = []
    for size in sizes:
        x = centers[rng.integers(groups, size=size)] + spread * rng.normal(size=(size, d))
        parts.append((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    return parts


def choose_with(method, parts, budgets, labeled=None, seed=0, answer=None, masked=False, **params):
    """((client, position) in picked order, exchanged); budgets, repeats and labelled samples are checked here."""
    holders = []
    for client, rows in enumerate(parts):
        taken = np.zeros(len(rows), dtype=bool)
        taken[[] if labeled is None else labeled[client]] = True
        holders.append(Holder(rows, taken))
    labels = [int(holder.taken.sum()) for holder in holders]
    known = Consortium([len(rows) for rows in parts], labels, list(budgets), parts[0].shape[1], masked)
    talk = method.coordinate(known, np.random.default_rng(seed), **params)
    clients, cost = run(talk, holders, answer or method.answer)
    picked = [[] if holder.picked is None else holder.picked.tolist() for holder in holders]
    for client, holder in enumerate(holders):
        assert clients.count(client) == len(picked[client]) == budgets[client]
        assert len(set(picked[client])) == len(picked[client])
        assert not holder.taken[picked[client]].any()
    turns = [iter(positions) for positions in picked]
    return [(client, next(turns[client])) for client in clients], cost
