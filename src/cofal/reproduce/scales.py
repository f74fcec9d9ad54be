"""What a scale is: its image sets with their clients and budgets, and which encoders are trained for them."""

from __future__ import annotations

import hashlib
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from cofal.config import Config, Section, load
from cofal.errors import UserError

SCALES = ("smoke", "cpu", "paper")


class Split(Section):
    """How a set is divided among its clients."""

    split: Literal["iid", "dirichlet"] = "iid"
    alpha: float | None = None

    @property
    def name(self) -> str:
        return "iid" if self.split == "iid" else f"dirichlet-{self.alpha:g}"


class Plan(Split):
    """Encoders to train on a split: one (or one a client) for each of these seeds of the split."""

    seeds: list[int]

    @property
    def plain(self) -> Split:
        return Split(split=self.split, alpha=self.alpha)


class SetPlan(Section):
    """One image set at one scale."""

    title: str
    paper: str = Field(default="", description="the set's key in the paper's tables; empty: not in the paper")
    kind: Literal["pixels", "public", "trained"] = Field(description="where its embeddings come from")
    folder: str = Field(default="", description="below the data folder")
    preset: str = Field(default="", description="the run whose Phase I trains the encoders")
    set: list[str] = Field(default=[], description="changes to that preset")
    limit: int | None = Field(default=None, ge=1, description="public: take so many of the rows, at random")
    clients: int = Field(ge=1)
    budgets: list[int] = Field(min_length=1)
    delta: float | Literal["auto"] = "auto"
    shared: list[Plan] = Field(default=[], description="splits whose clients train an encoder together")
    own: list[Plan] = Field(default=[], description="splits whose clients each train one alone")

    def config(self, data: Path, split: Split, seed: int, device: str) -> Config:
        """The run whose Phase I trains this set's encoders on that split."""
        alpha = [f"clients.alpha={split.alpha}"] if split.alpha is not None else []
        where = [f"data.path={json.dumps(str(data / self.folder))}"] if self.folder else []
        shape = [f"seed={seed}", f"clients.count={self.clients}", f"clients.split={split.split}", *alpha]
        return load(self.preset, [*self.set, *where, *shape, f"engine.device={device}"])

    def key(self) -> str:
        """Stands for all that decides the trained encoders but the split, its seed, and where the images lie."""
        config = self.config(Path(), Split(), 0, "cpu")
        chosen = [config.data.model_dump(exclude={"path"}), config.encoder.model_dump(), config.pretrain.model_dump()]
        return hashlib.sha256(json.dumps([self.clients, *chosen], sort_keys=True).encode()).hexdigest()[:8]


class Scale(Section):
    """A size at which the paper's experiments can be run."""

    device: str = "cpu"
    seeds: list[int] = Field(min_length=1)
    sets: dict[str, SetPlan]


def load_scale(name: str) -> Scale:
    """The scale called `name`, from the file that ships with the package."""
    if name not in SCALES:
        raise UserError(f"unknown scale {name!r}; choose one of {', '.join(SCALES)}")
    text = (resources.files("cofal.reproduce") / "scales" / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return Scale.model_validate(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"scale {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
