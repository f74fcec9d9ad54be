"""The one typed configuration of a run: TOML in, frozen pydantic models out, mistakes told in one line."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cofal.data.settings import DataSettings
from cofal.errors import UserError
from cofal.privacy.policy import CountNoise
from cofal.selection.numbers import MOST, MOST_TRIPS, SHARPEST, WIDEST, checked_radius
from cofal.validation import explain

Method = Literal["probcover", "typiclust", "maxherding", "random"]
StrategyName = Literal[
    "fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi",
    "fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan",
]  # fmt: skip


class Section(BaseModel):
    """A table of the configuration: no unknown keys, no change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClientSettings(Section):
    """How the data is spread over the clients of a simulated federation."""

    count: int | None = Field(default=4, ge=1, description="number of clients; left out for a by-column split")
    split: Literal["iid", "dirichlet", "by-column"] = "iid"
    alpha: float | None = Field(
        default=None, gt=0, description="Dirichlet concentration: 0.1 very unlike, 10 nearly alike"
    )
    labeled: str = Field(
        default="", description="CSV with columns id,label: samples whose labels are known from the start"
    )

    @model_validator(mode="after")
    def _alpha_belongs_to_dirichlet(self) -> ClientSettings:
        if self.split == "dirichlet" and self.alpha is None:
            raise ValueError("split = 'dirichlet' needs alpha, for example alpha = 0.1")
        if self.split != "dirichlet" and self.alpha is not None:
            raise ValueError(
                f"alpha = {self.alpha} has no meaning with split = '{self.split}'; remove it or use 'dirichlet'"
            )
        if self.split != "by-column" and self.count is None:
            raise ValueError("count is missing; give the number of clients")
        return self


class EncoderSettings(Section):
    """The shared encoder: which network, or which finished one to use instead of Phase I."""

    arch: Literal["resnet18", "resnet18-imagenet", "resnet-small", "resnet-tiny"] = "resnet-small"
    path: str = Field(default="", description="a saved encoder (.safetensors): Phase I is skipped")
    frozen: str = Field(
        default="", description="a public encoder at every site: model.pt, model.onnx or package.module:callable"
    )

    @model_validator(mode="after")
    def _one_source(self) -> EncoderSettings:
        if self.path and self.frozen:
            raise ValueError("path and frozen are both given; keep one of them")
        return self


class OptimiserSettings(Section):
    """What Phase I and Phase III have in common: rounds, local work, optimiser, aggregation."""

    rounds: int = Field(default=50, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=256, ge=2)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    strategy: StrategyName = "fedavg"
    strategy_options: dict[str, float] = Field(
        default_factory=dict, description="arguments of Flower's strategy, e.g. proximal_mu"
    )


class PretrainSettings(OptimiserSettings):
    """Phase I: federated SimCLR."""

    warmup: int = Field(default=0, ge=0, description="rounds in which the learning rate rises to lr")
    temperature: float = Field(default=0.5, gt=0)
    views: Literal["natural", "glyph"] = "natural"
    probe_every: int = Field(
        default=5, ge=0, description="rounds between nearest-neighbour probes on the server's test set; 0: never"
    )


class SelectionSettings(Section):
    """Phase II: which samples are asked for."""

    methods: list[Method] = Field(default=["maxherding"], min_length=1)
    coordination: list[Literal["central", "per-client", "aggregate", "auto"]] = Field(
        default=["central", "per-client"], min_length=1
    )
    budgets: list[int] = Field(
        default=[10, 50, 100], min_length=1, description="labels in total over all clients, cumulative"
    )
    sharing: Literal["embeddings", "aggregates"] = Field(
        default="embeddings",
        description="auto coordination: what clients show, embeddings or only counts and centroids",
    )
    shares: Literal["equal", "proportional", "auto"] | list[int] = Field(
        default="equal", description="each client's part of a budget; auto: by what its samples can add"
    )
    delta: float | Literal["auto"] = Field(default="auto", description="ProbCover's radius")
    lengthscale: float = Field(default=1.0, ge=SHARPEST, le=WIDEST, description="MaxHerding's kernel width")
    epsilon: float = Field(
        default=0.0, ge=0, lt=2**0.5, description="expected displacement of the noise on shared embeddings"
    )
    mechanism: Literal["tangent", "vmf"] = Field(
        default="tangent", description="the paper's noise, or von Mises-Fisher noise, which has a privacy guarantee"
    )
    correct_radius: bool = Field(
        default=True, description="fit ProbCover's radius and MaxHerding's lengthscale to the noise on embeddings"
    )
    min_region: int = Field(
        default=5,
        ge=1,
        le=MOST,
        strict=True,
        description="aggregate coordination: the fewest samples whose centroid or count leaves a site",
    )
    schedule: Literal["batched", "paper"] = Field(
        default="batched", description="aggregate ProbCover: in batches, or the paper's, three round trips a label"
    )
    iterations: int = Field(
        default=15, ge=2, le=MOST_TRIPS, description="aggregate TypiClust: k-means round trips at most"
    )
    shifts: int = Field(default=3, ge=0, le=6, description="aggregate MaxHerding: steps of mean shift")
    secure_sums: bool = Field(
        default=False, description="aggregate coordination: sums under masks, so that the server learns only totals"
    )
    count_noise: CountNoise | None = Field(
        default=None, description="aggregate coordination: noise on counts, and the privacy budget that ends it"
    )

    @model_validator(mode="after")
    def _sound(self) -> SelectionSettings:
        if any(b < 1 for b in self.budgets) or sorted(set(self.budgets)) != self.budgets:
            raise ValueError(f"budgets = {self.budgets} must be positive and rising; they are cumulative totals")
        try:
            checked_radius(self.delta)
        except UserError as error:
            raise ValueError(str(error)) from None
        if isinstance(self.shares, list) and (any(s < 0 for s in self.shares) or sum(self.shares) < 1):
            raise ValueError(f"shares = {self.shares} must be whole weights, none negative and not all zero")
        if self.secure_sums and self.sharing == "aggregates" and "auto" in self.coordination:
            raise ValueError(
                "secure_sums = true hides what auto compares, each site's counts; set it to false, "
                "or use coordination = ['aggregate']"
            )
        if self.sharing == "aggregates" and "central" in self.coordination and "auto" not in self.coordination:
            raise ValueError(
                "sharing = 'aggregates' is for auto, but coordination = 'central' shares embeddings; "
                "use coordination = ['aggregate'] or ['auto']"
            )
        alone = self.methods == ["random"]
        way = f"methods = {self.methods}" if alone else f"coordination = {self.coordination}"
        if self.epsilon > 0 and not self.seeing:
            raise ValueError(
                f"epsilon = {self.epsilon:g} is noise on embeddings, and with {way} none leaves a client; set it to 0, "
                "or use coordination = ['central'], or ['auto'] with sharing = 'embeddings'"
            )
        if self.secure_sums and (alone or "aggregate" not in self.coordination):
            raise ValueError(
                f"secure_sums = true needs coordination = ['aggregate']: with {way} nothing is summed; "
                "use it, or set secure_sums to false"
            )
        if self.count_noise and not self.aggregating:
            raise ValueError(
                f"count_noise is noise on what sites tell of groups, and with {way} they tell nothing of the kind; "
                "leave it out, or use coordination = ['aggregate']"
            )
        if self.schedule == "paper" and self.min_region > 1:
            raise ValueError(
                f"schedule = 'paper' asks for distances of single samples to all digits, and min_region = "
                f"{self.min_region} is to protect them; set min_region = 1, or use 'batched'"
            )
        if self.secure_sums and self.shares == "auto" and not self.seeing:
            raise ValueError(
                "secure_sums = true hides what shares = 'auto' compares, each site's counts; set it to false, "
                "or use shares = 'equal' or 'proportional'"
            )
        for name in ("methods", "coordination"):
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"{name} = {getattr(self, name)} names one twice")
        return self

    @property
    def seeing(self) -> list[str]:
        """The coordinations under which the server chooses from embeddings that the sites share; random needs none."""
        shown = {"central"} | ({"auto"} if self.sharing == "embeddings" else set())
        return [] if self.methods == ["random"] else [each for each in self.coordination if each in shown]

    @property
    def embeddings(self) -> str:
        """What the server asks the sites to share of their embeddings: raw | perturbed | none."""
        if not self.seeing:
            return "none"
        return "perturbed" if self.epsilon > 0 else "raw"

    @property
    def aggregating(self) -> bool:
        """Whether sites are asked about groups of their samples."""
        measured = self.sharing == "aggregates" and "auto" in self.coordination
        weighed = self.shares == "auto" and not self.seeing
        return ("aggregate" in self.coordination and self.methods != ["random"]) or measured or weighed

    def params(self, method: str) -> dict[str, Any]:
        """What is said here to a selector itself, whatever the coordination."""
        if method == "probcover":
            return {"delta": self.delta}
        return {"lengthscale": self.lengthscale} if method == "maxherding" else {}

    def aggregate_params(self, method: str) -> dict[str, Any]:
        """What is said here to a selector from aggregates."""
        own = {"probcover": "schedule", "typiclust": "iterations", "maxherding": "shifts"}.get(method)
        return {**self.params(method), "min_region": self.min_region, **({own: getattr(self, own)} if own else {})}


class TrainSettings(OptimiserSettings):
    """Phase III: the federated classifier.

    The defaults take one full-batch step at every site and let the server's Adam follow the mean of those steps: with a
    handful of labels a site this learns what training on the pooled labels would, where long local training forgets the
    classes that a site has no label of (docs/learning.md has the figures).
    """

    rounds: int = Field(default=40, ge=1)
    lr: float = Field(default=1.0, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=1e-3, ge=0)
    strategy: StrategyName = "fedadam"
    strategy_options: dict[str, float] = Field(default={"eta": 0.02, "tau": 1e-8})
    model: Literal["head", "image"] = Field(default="head", description="head on embeddings, or a whole image network")
    arch: Literal["resnet18", "resnet18-imagenet", "resnet-small", "resnet-tiny"] = Field(
        default="resnet-small", description="the image network, for model = 'image'"
    )
    hidden: int = Field(default=256, ge=1)
    evaluate: Literal["server", "clients"] = Field(default="server", description="who holds the test set")


class EngineSettings(Section):
    """How the server waits for its clients."""

    min_clients: int | None = Field(default=None, ge=1, description="go on with this many answers; default: all")
    timeout: float = Field(default=3600.0, gt=0, description="seconds to wait for an answer")
    device: str = "cpu"


class Config(Section):
    """A whole run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = Field(default=0, ge=0)
    data: DataSettings = DataSettings()
    clients: ClientSettings = ClientSettings()
    encoder: EncoderSettings = EncoderSettings()
    pretrain: PretrainSettings = PretrainSettings()
    selection: SelectionSettings = SelectionSettings()
    train: TrainSettings = TrainSettings()
    engine: EngineSettings = EngineSettings()


def parse(values: dict[str, Any], origin: str) -> Config:
    """A checked Config from plain values; `origin` (a file name) opens every error message."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error, Config)}") from None


def load(source: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration in the TOML file or preset `source`, with `a.b=value` overrides applied on top."""
    values, origin = _read(source)
    for item in overrides:
        _override(values, item)
    return parse(values, origin)


def presets() -> dict[str, str]:
    """Name and first comment line of every preset that ships with the package."""
    folder = resources.files("cofal") / "presets"
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".toml"):
            found[entry.name.removesuffix(".toml")] = entry.read_text().splitlines()[0].lstrip("# ")
    return found


def _read(source: str) -> tuple[dict[str, Any], str]:
    path = Path(source)
    if path.suffix != ".toml" and source in presets():
        text, origin = (resources.files("cofal") / "presets" / f"{source}.toml").read_text(), f"preset {source}"
    else:
        try:
            text, origin = path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            known = ", ".join(presets())
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise UserError(
                f"cannot read configuration {source}: {reason}; give a TOML file or a preset ({known})"
            ) from None
    try:
        return tomllib.loads(text), origin
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{origin} is not valid TOML: {error}") from None


def _override(values: dict[str, Any], item: str) -> None:
    key, equals, text = item.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {item}: write it as table.key=value, for example --set clients.count=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string, so that shells need no nested quotes
    *tables, last = (part.strip() for part in key.split("."))
    for name in tables:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {item}: {name} is a value, not a table")
        values = inner
    values[last] = value


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML, every value spelled out; None is left out, as TOML has no such value."""
    import tomli_w

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items() if inner is not None}
        return value

    return tomli_w.dumps(plain(config.model_dump()))
