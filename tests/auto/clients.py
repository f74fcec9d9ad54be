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


ALIKE = [[40, 40, 40, 40, 40, 40]] * 3
UNLIKE = [[120, 120, 0, 0, 0, 0], [0, 0, 120, 120, 0, 0], [0, 0, 0, 0, 120, 120]]
TWO_AND_ONE = [[60, 60, 60, 60, 0, 0], [60, 60, 60, 60, 0, 0], [0, 0, 0, 0, 120, 120]]
