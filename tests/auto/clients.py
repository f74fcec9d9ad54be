"""Clients for the tests of `auto`: rows of a few tight kinds, dealt out as a test needs them."""

import numpy as np


def kinds(rng, shares, d=16, spread=0.25):
    """One (rows, d) array per client: shares[k][c] rows of kind c; kinds are directions of their own."""
    centers = np.linalg.qr(rng.normal(size=(d, d)))[0][: len(shares[0])]
    found = []
    for own in shares:
        rows = [centers[c] + spread * rng.normal(size=(n, d)) / np.sqrt(d) for c, n in enumerate(own)]
        found.append(np.concatenate(rows) if sum(own) else np.empty((0, d)))
    return found


def look_alikes(rng, shares, d=40, looks=30):
    """As `kinds`, but all kinds come in the same looks, which are the greater part of every row."""
    directions = np.linalg.qr(rng.normal(size=(d, d)))[0]
    found = []
    for own in shares:
        kind = np.repeat(np.arange(len(own)), own)
        look = rng.integers(looks, size=len(kind))
        rows = directions[look] + 0.35 * directions[looks + kind] + 0.25 * rng.normal(size=(len(kind), d)) / np.sqrt(d)
        found.append(rows)
    return found


ALIKE = [[40, 40, 40, 40, 40, 40]] * 3
UNLIKE = [[120, 120, 0, 0, 0, 0], [0, 0, 120, 120, 0, 0], [0, 0, 0, 0, 120, 120]]
TWO_AND_ONE = [[150, 150, 150, 150, 0, 0], [150, 150, 150, 150, 0, 0], [0, 0, 0, 0, 300, 300]]
