"""scikit-learn's digits as a federation: centred unit rows, half to learn from, half to test on."""

from functools import lru_cache

import numpy as np
from sklearn.datasets import load_digits

from cofal.baselines.system import Federation, Own
from cofal.config import TrainSettings
from cofal.data.partition import partition
from cofal.rng import generator


@lru_cache
def digits(clients=4, alpha=None, seed=0, rows=400, rounds=10, own=False):
    x, y = load_digits(return_X_y=True)
    rng = generator(seed, "digits")
    order = rng.permutation(len(x))
    train, test = order[:rows], order[-400:]
    x = x - x[train].mean(axis=0)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    split = {"split": "dirichlet", "alpha": alpha} if alpha else {"split": "iid"}
    parts = [train[part] for part in partition(y[train], clients, rng=rng, **split)]
    owns = None
    if own:  # another space at each client: a random turn, and a dimension of its own
        turns = [rng.normal(size=(64, 20 + k)) / 8 for k in range(clients)]
        owns = [Own(unit(x[part] @ turn), unit(x[test] @ turn)) for part, turn in zip(parts, turns)]
    return Federation(
        [x[part] for part in parts], [y[part] for part in parts], x[test], y[test], 10,
        own=owns, train=TrainSettings(rounds=rounds),
    )  # fmt: skip


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
