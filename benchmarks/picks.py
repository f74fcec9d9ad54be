"""What a selection's picks are worth: a labelled set dealt to clients, and accuracy and coverage at each budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import embeddings
from cofal.config import TrainSettings
from cofal.data.partition import partition
from cofal.errors import UserError
from cofal.learning.federated_head import federated_head
from cofal.learning.head import predict_proba
from cofal.rng import generator
from cofal.selection.aggregate.exchange import Exchanged
from cofal.selection.shares import divide

RESULTS = Path(__file__).parent / "results"
DATA = ("cifar10", "digits")
SAMPLES = {"cifar10": 4000, "digits": 1297}  # of the pool, unless asked otherwise; the other 500 digits test
RADIUS = {"cifar10": 0.85, "digits": 0.7}  # ProbCover's, as the first trials on these sets had it
MODES = {
    "prefix": "one selection of the largest budget, of which the first picks are looked at",
    "nested": "a selection for each budget, the picks for the smaller budgets being labelled before",
    "scratch": "a selection for each budget, from nothing",
}
Order = list[tuple[int, int]]  # (client, position) in picked order
Select = Callable[[list[int], list[np.ndarray]], tuple[Order, Exchanged | None]]


class Case:
    """A seed's subset of a labelled set of embeddings, dealt to clients, and the test rows that judge the picks."""

    def __init__(self, data: str, samples: int, clients: int, alpha: float | None, seed: int) -> None:
        rng = generator(seed, "bench", "aggregate")
        x, y, self.x_test, self.y_test = _load(data, rng)
        if samples > len(x):
            raise UserError(f"--samples {samples} are more than the {len(x)} of {data}; ask for that many or fewer")
        chosen = np.sort(rng.permutation(len(x))[:samples])
        x, y = x[chosen], y[chosen]
        split = "iid" if alpha is None else "dirichlet"
        parts = partition(y, clients, split=split, alpha=alpha, rng=generator(seed, "bench", "clients"))
        self.rows, self.labels = [x[part] for part in parts], [y[part] for part in parts]
        self.classes, self.seed = int(y.max()) + 1, seed

    def accuracy(self, picks: Order) -> float:
        """Percent of the test rows that the head of Phase III, trained on the pooled labels of `picks`, gets right."""
        x = np.array([self.rows[client][position] for client, position in picks])
        y = np.array([self.labels[client][position] for client, position in picks]).astype(np.int64)
        head = federated_head([x], [y], self.classes, TrainSettings(), seed=self.seed)
        return 100 * float((predict_proba(head, self.x_test).argmax(1) == self.y_test).mean())

    def coverage(self, picks: Order, delta: float | None) -> float:
        """Percent of all rows within `delta` of a pick; without it, the mean Gaussian kernel value to the nearest."""
        x = np.concatenate(self.rows)
        squared = (2 - 2 * x @ np.array([self.rows[client][position] for client, position in picks]).T).min(1)
        return 100 * float((squared <= delta**2).mean() if delta else np.exp(-np.maximum(squared, 0)).mean())


def _load(data: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Unit rows and labels, for training and for testing."""
    if data == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = rng.permutation(len(digits.data))
        x, y, first = digits.data[order] - digits.data.mean(0), digits.target[order], SAMPLES["digits"]
        x, y, x_test, y_test = x[:first], y[:first], x[first:], y[first:]
    else:
        file = embeddings()
        if file is None:
            raise UserError("no embeddings/*.npz below the folder COFAL_DATA; name the folder or use --data digits")
        content = np.load(file)
        x, y, x_test, y_test = (content[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    return _unit(x), y.astype(np.int64), _unit(x_test), y_test.astype(np.int64)


def _unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float32)
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def curve(case: Case, budgets: Sequence[int], mode: str, select: Select, delta: float | None) -> dict[str, Any]:
    """Accuracy and coverage at each total budget, and what the selections exchanged."""
    clients, sizes = len(case.rows), [len(rows) for rows in case.rows]
    labeled = [np.empty(0, dtype=np.int64) for _ in range(clients)]
    shares = {total: divide(total, [1.0] * clients, sizes) for total in budgets}
    picks: Order = []
    found: dict[str, Any] = {"accuracy": [], "coverage": [], "rounds": [], "up": [], "down": []}
    for total in [budgets[-1]] if mode == "prefix" else budgets:
        if mode == "scratch":
            picks = []
        already = [sum(client == k for client, _ in picks) for k in range(clients)]
        asked = [share - had for share, had in zip(shares[total], already)]
        order, cost = select(asked, labeled)
        assert [sum(client == k for client, _ in order) for k in range(clients)] == asked, "a budget was not kept"
        assert len(set(picks + order)) == len(picks) + len(order), "a sample was picked twice"
        picks = picks + order
        if mode == "nested":
            labeled = [np.array([p for client, p in picks if client == k], dtype=np.int64) for k in range(clients)]
        if cost is not None:
            found["rounds"].append(cost.rounds)
            found["up"].append(max(cost.up))
            found["down"].append(max(cost.down))
        for budget in budgets if mode == "prefix" else [total]:
            found["accuracy"].append(case.accuracy(picks[:budget]))
            found["coverage"].append(case.coverage(picks[:budget], delta))
    return found
