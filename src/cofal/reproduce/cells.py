"""One point of a grid: which data, split, clients, system, seed and budgets; and the key that stands for all of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from cofal.reproduce.scales import Split

PROTOCOL = 1  # raised when the same cell would come to another result: records of an older one are computed anew
OWN = "ono-"  # how the systems are called whose clients have an encoder each
REDUNDANCY = "redundancy-"  # before a method: what its picks cover, not what can be learnt from them


@dataclass(frozen=True)
class Cell:
    """A system on a federation, under nested budgets."""

    set: str
    split: str  # iid | dirichlet
    alpha: float | None
    clients: int
    system: str  # a name that `cofal.baselines.registry.find_system` knows, or `redundancy-METHOD` (`measuring.py`)
    seed: int
    budgets: tuple[int, ...]  # labels in total, cumulative
    encoder: str = ""  # `iid`: the shared encoder of the IID split, whatever this cell's split; else its own split's
    params: dict[str, Any] = field(
        default_factory=dict, hash=False
    )  # of the selection methods: {"probcover": {"delta": 0.75}}
    code: str = ""  # digest of the file that holds a user's own selector
    rows: int | None = None  # so many of the set's training rows, drawn for each seed, are all that the clients have
    pooled: bool = False  # the classifier is trained on all labels in one place (`Federation.pooled`)

    @property
    def on(self) -> Split:
        return Split.model_validate({"split": self.split, "alpha": self.alpha})

    @property
    def needs_own(self) -> bool:
        return self.system.startswith(OWN)

    @property
    def title(self) -> str:
        return f"{self.set}, {self.on.name}, {self.clients} clients, {self.system}, seed {self.seed}"

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "budgets": list(self.budgets)}

    def key(self, identity: dict[str, Any]) -> str:
        """Stands for the cell and for the data behind it (`identity`: digests of embeddings and labels)."""
        text = json.dumps([PROTOCOL, self.plain(), identity], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def cell_of(values: dict[str, Any]) -> Cell:
    """The cell that `Cell.plain` described."""
    return Cell(**{**values, "budgets": tuple(values["budgets"])})
