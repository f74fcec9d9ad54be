"""The ways to share that are compared, and the accuracy that each leaves to the labels picked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cofal.config import Config
from cofal.evaluation.curves import mean_height
from cofal.learning.head import build_head, predict_proba, train_head
from cofal.privacy.attacks.scene import Scene
from cofal.rng import torch_generator
from cofal.selection import select
from cofal.selection.shares import divide

REPEATS = 5  # draws of noise, and heads, over which accuracy is averaged


@dataclass(frozen=True)
class Level:
    """One way to share: its name for people, and its parameters."""

    name: str
    kind: str  # noise | aggregate | nothing
    epsilon: float = 0.0
    mechanism: str = "tangent"


AGGREGATES, NOTHING = Level("aggregates", "aggregate"), Level("nothing", "nothing")


def noise(epsilon: float, mechanism: str = "tangent") -> Level:
    """Embeddings with noise, or raw ones at epsilon 0."""
    return Level(f"{mechanism} {epsilon:g}", "noise", epsilon, mechanism) if epsilon else Level("raw", "noise")


def levels(epsilons: Sequence[float], own: Level) -> list[Level]:
    """Raw embeddings, both kinds of noise, aggregates, and nothing at all; a run's `own` level is always among them."""
    wanted = sorted({*epsilons, *([own.epsilon] if own.kind == "noise" else [])})
    return [
        *([noise(0.0)] if 0.0 in wanted else []),
        *(noise(epsilon, mechanism) for epsilon in wanted if epsilon > 0 for mechanism in ("tangent", "vmf")),
        AGGREGATES,
        NOTHING,
    ]


@dataclass(frozen=True)
class Sent:
    """What the clients of a run itself sent for its selections."""

    level: Level  # the one of them that tells most
    aggregates: bool  # that and no more, or beside embeddings
    masked: bool  # sums of aggregates under masks: the server learned totals alone
    methods: list[str]  # that chose by what was sent

    @property
    def words(self) -> str:
        aggregates = "aggregates, with their sums under masks (secure sums)" if self.masked else "aggregates"
        if self.level.kind != "noise":
            return aggregates if self.aggregates else "nothing of their embeddings"
        noise = f"embeddings with {self.level.mechanism} noise of {self.level.epsilon:g}"
        return (noise if self.level.epsilon else "raw embeddings") + (f", and {aggregates}" if self.aggregates else "")


def sent_by(config: Config) -> Sent:
    """By a run's configuration."""
    selection = config.selection
    methods = [str(method) for method in selection.methods if method != "random"]
    veiled = {"aggregate"} | ({"auto"} if selection.sharing == "aggregates" else set())
    aggregates = bool(methods) and not veiled.isdisjoint(selection.coordination)
    if selection.embeddings == "none":
        level = AGGREGATES if aggregates else NOTHING
    else:
        level = noise(selection.epsilon, selection.mechanism)
    return Sent(level, aggregates, selection.secure_sums, methods)


def accuracy(scene: Scene, level: Level, method: str, min_region: int, seed: int) -> tuple[float, float]:
    """Test accuracy of heads on the picks that this level of sharing allows: mean over the budgets, and its error.

    The standard error is that over draws of noise and of heads; other images would differ by more.
    """
    budgets = scene.config.selection.budgets
    heights = []
    for repeat in range(REPEATS):
        picks = order(scene, level, method, min_region, seed + repeat)
        right = [_head_accuracy(scene, picks[:budget], seed, repeat) for budget in budgets]
        heights.append(mean_height(budgets, right))
    return float(np.mean(heights)), float(np.std(heights, ddof=1) / np.sqrt(REPEATS))


def order(scene: Scene, level: Level, method: str, min_region: int, seed: int) -> list[tuple[int, int]]:
    """(site, row) of each pick up to the last budget, by the selector as the run's configuration sets it."""
    rows = [site.rows for site in scene.sites]
    budgets = divide(scene.config.selection.budgets[-1], [1.0] * len(rows), [len(each) for each in rows])
    params = scene.config.selection.params(method)
    if level.kind == "aggregate":
        params = {**scene.config.selection.aggregate_params(method), "min_region": min_region}
        return select(rows, budgets, method, "aggregate", seed=seed, **params).order
    coordination = "per-client" if level.kind == "nothing" else "central"
    return select(
        rows, budgets, method, coordination, seed=seed, epsilon=level.epsilon, mechanism=level.mechanism, **params
    ).order


def _head_accuracy(scene: Scene, picks: list[tuple[int, int]], seed: int, repeat: int) -> float:
    x = np.array([scene.sites[client].rows[row] for client, row in picks], dtype=np.float32)
    y = np.array([scene.sites[client].labels[row] for client, row in picks], dtype=np.int64)
    stream = torch_generator(seed, "attack", "head", repeat)
    head = build_head(scene.d, 256, len(scene.classes), stream)
    train_head(
        head, x[y >= 0], y[y >= 0], epochs=40, batch_size=len(y), lr=0.02, weight_decay=0.0, optimizer="adamw",
        generator=stream,
    )  # fmt: skip
    return float((predict_proba(head, scene.test.rows).argmax(1) == scene.test.labels).mean())
