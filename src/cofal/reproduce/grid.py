"""What a table or figure is: its title, its claims, how it is shown, and the grid of cells behind it, from its TOML."""

from __future__ import annotations

import difflib
import tomllib
from importlib import resources
from typing import Any, Literal

from pydantic import Field, ValidationError

from cofal.config import Section
from cofal.errors import UserError
from cofal.reproduce.cells import REDUNDANCY, Cell
from cofal.reproduce.scales import Scale, Split

View = Literal["budgets", "gaps", "alpha", "noise", "aggregate", "high-budget", "theory", "auto"]
DRAWS = 50  # of random picks, where their redundancy is measured: one draw says little about its mean
_TWO_SIDED = (
    "{method}-central",
    "{method}-per-client",
    "{method}-auto",
)  # what a selector of the user's can be put into


class Grid(Section):
    """Cells: every set x split x system x seed. `{method}` in a system stands for each of `methods`."""

    sets: dict[str, list[str]] = Field(description="by scale")
    splits: list[str] = Field(default=["iid"], min_length=1)
    systems: list[str] = Field(min_length=1)
    methods: list[str] = Field(default=[], description="what {method} stands for")
    clients: list[int] = Field(default=[], description="numbers of clients; empty: the set's own")
    budgets: dict[str, list[int]] = Field(default={}, description="by scale; a scale left out: the set's own")
    per_client: dict[str, int] = Field(default={}, description="by scale: one budget, so many labels a client")
    seeds: dict[str, list[int]] = Field(default={}, description="by scale; a scale left out: the scale's own")
    rows: dict[str, int] = Field(default={}, description="by scale: so many of the training rows, where cells are many")
    pooled: bool = Field(default=False, description="train the classifier on all labels in one place, which is faster")
    encoder: dict[str, Literal["iid", "split"]] = Field(
        default={}, description="by scale: the shared encoder of the IID split for all splits, or the split's own"
    )

    def cells(self, scale_name: str, scale: Scale, extra: dict[str, str]) -> list[Cell]:
        """The cells at a scale. `extra`: selectors of the user's (module:Name) and the digest of their code."""
        found = []
        for set_name in self.sets.get(scale_name, []):
            plan = scale.sets[set_name]
            other_encoder = plan.kind == "trained" and self.encoder.get(scale_name) == "iid"
            for clients in self.clients or [plan.clients]:
                budgets = self.budgets.get(scale_name, plan.budgets)
                if scale_name in self.per_client:
                    budgets = [clients * self.per_client[scale_name]]
                for split in map(split_of, self.splits):
                    for system, code in self._systems(extra):
                        found += [
                            Cell(
                                set_name, split.split, split.alpha, clients, system, seed, tuple(budgets),
                                encoder="iid" if other_encoder and split.split != "iid" else "",
                                params=_params(system, plan.delta),
                                code=code, rows=self.rows.get(scale_name), pooled=self.pooled,
                            )
                            for seed in self.seeds.get(scale_name, scale.seeds)
                        ]  # fmt: skip
        return found

    def _systems(self, extra: dict[str, str]) -> list[tuple[str, str]]:
        """Systems with the digest of the user's code (empty for the built-in ones), method by method."""
        per_method = [system for system in self.systems if "{method}" in system]
        found = [(system.replace("{method}", method), "") for method in self.methods for system in per_method]
        found += [(system, "") for system in self.systems if "{method}" not in system]
        for name, code in extra.items():
            found += [(system.replace("{method}", name), code) for system in per_method if system in _TWO_SIDED]
        return found


def _params(system: str, delta: float | str) -> dict[str, Any]:
    """What the selector of a system is told."""
    if "probcover" in system:
        return {"probcover": {"delta": delta}}
    return {"random": {"draws": DRAWS}} if system == f"{REDUNDANCY}random" else {}


class Experiment(Section):
    """One table or figure of the paper, or beyond it."""

    name: str
    title: str
    paper: str = Field(default="", description="what it is in the paper; empty: the paper has no such thing")
    about: str = Field(description="what is compared, in a sentence or two")
    view: View
    paper_table: str = Field(default="", description="where the paper's numbers are")
    claims: list[str] = Field(default=[], description="names of `cofal.reproduce.claims.CLAIMS`")
    pair: list[str] = Field(
        default=[], description="for gaps: the better system expected, and the one it is held against"
    )
    grid: list[Grid]

    def cells(self, scale_name: str, scale: Scale, extra: dict[str, str] | None = None) -> list[Cell]:
        return [cell for grid in self.grid for cell in grid.cells(scale_name, scale, extra or {})]


def split_of(name: str) -> Split:
    """`iid`, or `dirichlet-ALPHA`."""
    if name == "iid":
        return Split()
    return Split(split="dirichlet", alpha=float(name.removeprefix("dirichlet-")))


def experiment_names() -> list[str]:
    """All tables, then all figures, then the theory, each in the order of the paper; then what goes beyond it."""
    return [*_ORDER]


def load_experiment(name: str) -> Experiment:
    """The table or figure called `name`."""
    if name not in _ORDER:
        near = difflib.get_close_matches(name, [*_ORDER, "all", "encoders"], n=1, cutoff=0.0)[0]
        raise UserError(f"unknown name {name!r}; did you mean {near!r}? `cofal reproduce --list` shows all")
    text = (resources.files("cofal.reproduce") / "experiments" / f"{name}.toml").read_text(encoding="utf-8")
    values: dict[str, Any] = tomllib.loads(text)
    try:
        return Experiment.model_validate({"name": name, **values})
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"experiment {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


_ORDER = (
    "table-full-pipeline",
    "table-aggregate",
    "table-same-embedding",
    "table-dirichlet",
    "table-perturbation",
    "fig-gap-iid",
    "fig-gap-noniid",
    "fig-high-budget",
    "fig-noise",
    "fig-aggregate",
    "fig-same-embedding",
    "fig-alpha",
    "theory",
    "auto",
)
