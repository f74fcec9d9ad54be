"""Clients of a secure sum in folders of their own, opened anew for every message as separate processes would."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cofal.privacy.private_files import write_private
from cofal.privacy.secure_sum import Collector, Session

ROUNDS = 8


class Consortium:
    """`names` after set-up, in which client `lost` gave its key and no more; `open` gives a session as a new process
    would see it."""

    def __init__(self, root: Path, clients: int, *, rounds: int = ROUNDS, seed: int | None = None, lost: str = ""):
        self.root, self.session = root, "s1"
        self.names = [f"site{index}" for index in range(clients)]
        if seed is not None:  # secrets that a test can repeat
            for index, name in enumerate(self.names):
                secret = np.random.default_rng([seed, index]).bytes(32).hex()
                write_private(self.secrets_of(name) / "secret.json", {"name": name, "root": secret})
        self.keys = {name: self.open(name).keys() for name in self.names}
        self.collector = Collector(self.session, self.keys, rounds)
        self.shares = {name: self.open(name).shares(self.keys, rounds) for name in self.names if name != lost}
        for name in self.shares:
            self.open(name).receive(self.collector.inbox(name, self.shares))

    def secrets_of(self, name: str) -> Path:
        return self.root / name / "secure-sums" / self.session

    def open(self, name: str) -> Session:
        return Session.start(self.root / name, self.session, name)

    def masked(self, round: int, inputs: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: self.open(name).masked(round, arrays) for name, arrays in inputs.items()}

    def total(self, round: int, inputs: dict[str, dict[str, np.ndarray]], *, before=(), within=()):
        """The sum of `inputs` when the clients `before` are lost before it and those `within` between its halves."""
        masked = self.masked(round, {name: arrays for name, arrays in inputs.items() if name not in before})
        survivors = self.collector.survivors(masked)
        unmasked = {name: self.open(name).unmask(round, survivors) for name in survivors if name not in within}
        shapes = {key: array.shape for key, array in next(iter(inputs.values())).items()}
        return self.collector.total(round, masked, unmasked, shapes)


def numbers(names: list[str], shape=(4, 3), seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Two int32 arrays a client, of mixed signs."""
    rng = np.random.default_rng(seed)
    return {
        name: {
            "counts": rng.integers(0, 1000, 5).astype(np.int32),
            "sums": rng.integers(-(10**8), 10**8, shape).astype(np.int32),
        }
        for name in names
    }


def plain_total(inputs: dict[str, dict[str, np.ndarray]], lost=()) -> dict[str, np.ndarray]:
    kept = [arrays for name, arrays in inputs.items() if name not in lost]
    return {key: np.sum([arrays[key] for arrays in kept], axis=0, dtype=np.int64) for key in kept[0]}


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[key], right[key]) for key in left)
