"""What may leave a site: the kinds of content a reply can carry, and the policy by which a site refuses the rest."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cofal.errors import UserError


class Kind(StrEnum):
    """What a message reveals at most; a message that carries several things has the kind of the most telling one."""

    NOTHING = "nothing"  # an acknowledgement
    DESCRIPTION = "description"  # name, class names, numbers of samples
    METRIC = "metric"  # losses, counts of correct answers
    IDS = "ids"  # names of the samples a site picked
    MODEL = "model"  # weights after local training
    SECURE_SUM = "secure-sum"  # masked numbers of which only the sum over all sites can be read
    AGGREGATE = "aggregate"  # centroids and counts of groups of samples, coarse distances of single ones
    PERTURBED = "perturbed"  # one noised embedding a sample
    RAW = "raw"  # one embedding a sample, as it is


# Taking part means to tell these: a site that would not tell them cannot join, so no policy lists them.
ALWAYS = frozenset({Kind.NOTHING, Kind.DESCRIPTION, Kind.METRIC})

# What a permission brings with it: that which could be learned from what may leave anyway. Embeddings leave with the
# names of their samples.
INCLUDES = {
    Kind.RAW: frozenset({Kind.PERTURBED, Kind.AGGREGATE, Kind.SECURE_SUM, Kind.IDS}),
    Kind.PERTURBED: frozenset({Kind.IDS}),
    Kind.AGGREGATE: frozenset({Kind.SECURE_SUM}),
}


class CountNoise(BaseModel):
    """Noise on the counts of aggregate selections, and the privacy budget that ends them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mechanism: Literal["laplace", "gaussian"] = Field(default="laplace", description="discrete, on whole numbers")
    parameter: float = Field(gt=0, le=10_000, description="scale of laplace, standard deviation of gaussian")
    epsilon: float = Field(gt=0, description="budget: no count is told that would exceed it")
    delta: float = Field(default=1e-6, ge=0, lt=1)


class Policy(BaseModel):
    """One site's rules. The defaults suit a deployment: models and aggregates, no embedding of a single sample."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: list[Kind] = [Kind.AGGREGATE, Kind.MODEL]
    min_epsilon: float = Field(
        default=0.0, ge=0, lt=math.sqrt(2), description="least noise on embeddings; raw ones have 0"
    )
    min_region: int = Field(default=5, ge=1, strict=True, description="fewest samples whose aggregate may leave")
    reproducible_noise: bool = Field(default=False, description="may the server name the seed of the noise?")
    count_noise: CountNoise | None = Field(default=None, description="noise on counts, and its privacy budget")
    max_releases: int = Field(default=1, ge=1, description="different noised versions of the embeddings that may leave")
    max_questions: int = Field(
        default=200, ge=1, description="different questions of aggregate selections that are answered, ever"
    )
    secure_sums: bool = Field(default=False, description="what is summed over the sites leaves under masks alone")

    @model_validator(mode="after")
    def _noise_has_a_floor(self) -> Policy:
        if Kind.PERTURBED in self.allow and Kind.RAW not in self.allow and self.min_epsilon == 0:
            raise ValueError(
                "allow names perturbed, but min_epsilon is 0: a server may then ask for next to no noise; "
                "set min_epsilon, e.g. 0.6, or allow raw"
            )
        return self

    @property
    def allowed(self) -> frozenset[Kind]:
        """Every kind that may leave, with what the listed ones include."""
        return ALWAYS.union(self.allow, *(INCLUDES.get(kind, frozenset()) for kind in self.allow))

    def check(self, site: str, kind: Kind, epsilon: float = 0.0) -> None:
        """Raise the refusal of `site` unless a message of `kind` may leave; `epsilon` is the noise on embeddings."""
        if kind not in self.allowed:
            raise UserError(
                f"site {site} refuses to send {kind!s}: its policy.allow is {', '.join(self.allow) or 'empty'}; "
                f"ask for no more than that, or let the site's owner add {kind!s}"
            )
        # Written so that NaN is refused as well.
        if kind in (Kind.RAW, Kind.PERTURBED) and not epsilon >= self.min_epsilon:
            raise UserError(
                f"site {site} refuses embeddings with noise epsilon = {epsilon:g}: its policy.min_epsilon is "
                f"{self.min_epsilon:g}; ask for that much noise or more"
            )
