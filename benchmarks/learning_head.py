"""The federated head against logistic regression on the pooled labels, by weight decay: what docs/learning.md shows.

python -m benchmarks.learning_head --data FILE.npz [--seeds 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from cofal.config import TrainSettings
from cofal.learning.federated_head import federated_head
from cofal.learning.head import predict_proba
from cofal.rng import generator

CLIENTS = 4
LABELS = (20, 100, 500, 1000, 2000)
DECAYS = (1e-4, 1e-3, 1e-2)


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="x_train, y_train, x_test, y_test of embeddings")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with np.load(options.data, allow_pickle=False) as file:
        x, y, x_test, y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    x, x_test, y = _unit(x), _unit(x_test), y.astype(np.int64)
    classes = int(y.max()) + 1
    print("| labels | " + " | ".join(f"decay {decay:g}" for decay in DECAYS) + " | logistic regression |")
    print("| ---: |" + " ---: |" * (len(DECAYS) + 1))
    for labels in LABELS:
        scores = []
        for seed in range(options.seeds):
            rows = generator(seed, "labels").permutation(len(x))[:labels]
            parts = np.array_split(rows, CLIENTS)
            row = []
            for decay in DECAYS:
                settings = TrainSettings(rounds=50, weight_decay=decay)
                head = federated_head([x[p] for p in parts], [y[p] for p in parts], classes, settings, seed=seed)
                row.append(float((predict_proba(head, x_test).argmax(axis=1) == y_test).mean()))
            pooled = LogisticRegression(C=10, max_iter=300).fit(x[rows], y[rows])
            scores.append([*row, pooled.score(x_test, y_test)])
        print(f"| {labels} | " + " | ".join(f"{100 * mean:.1f}" for mean in np.mean(scores, axis=0)) + " |", flush=True)


if __name__ == "__main__":
    main()
