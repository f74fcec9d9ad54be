"""Every attack at every level of protection on one run, beside the accuracy that the same protection leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
import torch

from cofal.privacy.attacks import aggregates
from cofal.privacy.attacks.levels import Level, Sent, accuracy, levels, sent_by
from cofal.privacy.attacks.matching import area_under_roc, found_at, membership_scores, reidentification, without_noise
from cofal.privacy.attacks.reconstruction import Forger, Judge, Likeness, likeness, pixels
from cofal.privacy.attacks.scene import Party, Scene
from cofal.privacy.perturbation import perturb, privacy_loss
from cofal.rng import generator
from cofal.selection.aggregate.select import aggregate_method
from cofal.selection.kmeans import kmeans
from cofal.selection.pool import Pool
from cofal.selection.shares import divide

SHOWN = 10  # pictures of the grid
CANDIDATES = 1000  # among which re-identification looks
FORGED = 500  # private images that are rebuilt
VERSIONS = 8  # noised versions of its own images that the attacker trains on
_SMALL = 16  # pixels of a side
REGIONS = (1, 5, 20)  # fewest samples of a region
COUNTS = (10, 30, 100)  # regions of all clients together, about: each is asked for as many as the others


@dataclass
class Row:
    """What was measured at one level; None where an attack has nothing to work on."""

    level: Level
    accuracy: float  # mean over the budgets, share of the test images
    membership: float  # area under the ROC curve of the strongest attack
    recognised_members: float  # share of the members found at 1 % false alarms, by the same attack
    reidentified: float | None
    likeness: Likeness
    kappa: float | None = None
    accuracy_error: float = 0.0  # standard error of `accuracy`
    by_attack: dict[str, float] = field(default_factory=dict)  # area of each membership attack, where there are several


@dataclass
class Study:
    """The results of all attacks on a run."""

    rows: list[Row]
    regions: list[dict[str, float]]  # membership from one release of regions, by their number and smallest size
    known_seed: float  # re-identification at epsilon 0.6 by someone who knows the seed of the noise
    ceiling: float  # what the judge recognises of the real images
    grid: list[tuple[str, np.ndarray]]  # name and pictures (SHOWN, c, side, side)
    sent: Sent  # by the clients of the run itself
    facts: dict[str, Any]


def attack(
    scene: Scene,
    epsilons: list[float],
    *,
    method: str,
    min_region: int,
    steps: int,
    seed: int,
    told: Callable[[str], None],
) -> Study:
    """Run all attacks. `steps` of training for the decoder and the judge; `told` hears what is being done."""
    sent = sent_by(scene.config)
    with _few_threads(scene.own.images.shape[1]):
        told("training the attacker's decoder and the judge")
        bench = _Workshop(scene, steps, seed)
        heard = overheard(scene, method, min_region, seed)
        rows, grid = [], [("original", bench.originals[:SHOWN])]
        for level in levels(epsilons, sent.level):
            told(level.name)
            if level.kind == "noise":
                row, pictures = _noised(scene, bench, level, seed)
            elif level.kind == "aggregate":
                row, pictures = _aggregated(scene, bench, level, heard, min_region)
            else:
                row, pictures = _nothing(bench, level)
            row.accuracy, row.accuracy_error = accuracy(scene, level, method, min_region, seed)
            rows.append(row)
            if level.mechanism == "tangent":  # vmf's look the same
                grid.append((level.name, pictures[:SHOWN]))
        told("membership by number and size of regions")
        attacked = scene.attacked
        facts = {
            "images attacked": len(attacked),
            "outsiders": len(scene.outside),
            "attacker's own images": len(scene.own),
            "candidates": min(CANDIDATES // 2, len(attacked)) + min(CANDIDATES // 2, len(scene.outside)),
            "dimensions": scene.d,
            "clients": len(scene.sites),
            "method": method,
            "min_region": min_region,
            "budgets": list(scene.config.selection.budgets),
            "decoder steps": steps,
            "seed": seed,
        }
        return Study(rows, _region_sweep(scene), _known_seed(scene, seed), bench.ceiling, grid, sent, facts)


@contextmanager
def _few_threads(side: int) -> Iterator[None]:
    """Fewer threads than cores in the block, for images of `side` pixels.

    Small selections alternate with trainings: workers of the one that wait for their next turn would take the cores of
    the other. And a few pixels are too little work to share among cores.
    """
    threads, workers = torch.get_num_threads(), numba.get_num_threads()
    numba.set_num_threads(1)
    if side <= _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        numba.set_num_threads(workers)


class _Workshop:
    """The attacker's trained parts: a decoder that is refitted at each level, and the judge of its pictures."""

    def __init__(self, scene: Scene, steps: int, seed: int) -> None:
        own, target = scene.own, scene.attacked
        some = np.sort(generator(seed, "attack", "forged").permutation(len(target))[:FORGED])
        self.some, self.target, self.own, self.seed = some, target.take(some), own, seed
        self.originals = pixels(self.target.images)
        self.pictures = pixels(own.images)
        known = np.flatnonzero(own.labels >= 0)
        arch = scene.config.encoder.arch
        self.judge = Judge(
            own.images[known],
            own.labels[known],
            len(scene.classes),
            arch,
            scene.config.pretrain.views,
            steps // 2,
            seed,
        )
        self.ceiling = self.judge.accuracy(self.originals, self.target.labels)
        self.forger = Forger(self.pictures, seed, scene.d)
        self.forger.learn(own.rows[None], steps)
        self._steps = steps

    def rebuild(self, sent: np.ndarray, like: np.ndarray | None) -> tuple[Likeness, np.ndarray]:
        """Pictures from what was sent of the targets, by a decoder refitted to `like` (versions of its own images)."""
        if like is not None:
            self.forger.learn(like, max(1, self._steps // 3), lr=1e-3)
        pictures = self.forger.forge(sent)
        return likeness(pictures, self.originals, self.target.labels, self.judge), pictures

    def blank(self) -> tuple[Likeness, np.ndarray]:
        """The best picture without any embedding: the mean of the own images."""
        pictures = np.repeat(self.pictures.mean(0, keepdims=True), len(self.originals), axis=0)
        return likeness(pictures, self.originals, self.target.labels, self.judge), pictures


def _noised(scene: Scene, bench: _Workshop, level: Level, seed: int) -> tuple[Row, np.ndarray]:
    target = scene.attacked
    stream = generator(seed, "attack", "noise", level.name)
    sent = perturb(target.rows, level.epsilon, stream, level.mechanism)
    score = membership_scores(
        sent, np.concatenate([target.rows, scene.outside.rows]), scene.own.rows, level.epsilon, level.mechanism
    )
    members, others = score[: len(target)], score[len(target) :]
    like = None  # vmf follows tangent of the same epsilon and finds the decoder fitted: pictures differ by a hair
    if level.mechanism == "tangent" and level.epsilon > 0:
        like = np.stack([perturb(scene.own.rows, level.epsilon, stream) for _ in range(VERSIONS)])
    found, pictures = bench.rebuild(sent[bench.some], like)
    kappa = privacy_loss(level.epsilon, scene.d, level.mechanism)
    row = Row(
        level,
        0.0,
        area_under_roc(members, others),
        found_at(members, others),
        _named(scene, sent, seed),
        found,
        kappa if np.isfinite(kappa) else None,
    )
    return row, pictures


def _named(scene: Scene, sent: np.ndarray, seed: int) -> float:
    """Re-identification of `sent`, the rows of the attacked images, among attacked ones and outsiders half and half."""
    target, outside = scene.attacked, scene.outside
    rng = generator(seed, "attack", "candidates")
    mine, decoys = (rng.permutation(len(party))[: CANDIDATES // 2] for party in (target, outside))
    candidates = np.concatenate([target.rows[mine], outside.rows[decoys]])
    return reidentification(sent[mine], candidates, np.arange(len(mine)))


def overheard(scene: Scene, method: str, min_region: int, seed: int) -> list[aggregates.Heard]:
    """What the private images' clients tell in a selection by the selector as the run's configuration sets it.

    Their parts of what is summed are among it, unless the run has secure sums.
    """
    sizes = [len(party) for party in scene.private]
    budgets = divide(min(scene.config.selection.budgets[-1], sum(sizes) // 2), [1.0] * len(sizes), sizes)
    rows = [party.rows for party in scene.private]
    params = {**scene.config.selection.aggregate_params(method), "min_region": min_region}
    masked = scene.config.selection.secure_sums
    return aggregates.overhear(aggregate_method(method), rows, budgets, seed, params, masked=masked)


def _aggregated(
    scene: Scene, bench: _Workshop, level: Level, heard: list[aggregates.Heard], min_region: int
) -> tuple[Row, np.ndarray]:
    target, own = scene.attacked, scene.own
    candidates, cut = np.concatenate([target.rows, scene.outside.rows]), len(target)
    # Whoever hears the parts of a sum has the total as well, which may tell more.
    scores = [aggregates.scores(each, candidates, own.rows) for each in (heard, aggregates.totals(heard))]
    areas = {
        name: max(area_under_roc(each[name][:cut], each[name][cut:]) for each in scores if name in each)
        for name in scores[0]
    }
    sharpest = max((found_at(score[:cut], score[cut:]) for each in scores for score in each.values()), default=0.01)
    messages = [np.concatenate([each.means for each in told]) for told in aggregates.regions(heard, scene.d)]
    # The message whose means come nearest to images of this kind: the attacker tells it by its own.
    near = [float((own.rows * _nearest_mean(own.rows, means)).sum(1).mean()) for means in messages]
    means = messages[int(np.argmax(near))] if messages else own.rows.mean(0, keepdims=True)
    like = _to_means(own, len(means), min_region, bench.seed)
    found, pictures = bench.rebuild(_nearest_mean(bench.target.rows, means), like[None])
    row = Row(level, 0.0, max(areas.values(), default=0.5), sharpest, None, found, by_attack=areas)
    return row, pictures


def _nearest_mean(rows: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Of each row the mean that lies nearest, at unit length: all that an aggregate says of it."""
    unit = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    chosen: np.ndarray = unit[(rows @ unit.T).argmax(1)]
    return chosen


def _to_means(own: Party, count: int, min_region: int, seed: int) -> np.ndarray:
    """The attacker's own rows, each replaced by the mean of a region of about the size of those it heard of."""
    k = max(1, min(count, len(own) // max(2, min_region)))
    found = kmeans(Pool([own.rows]).in_memory(), k, generator(seed, "attack", "regions"))
    return _nearest_mean(own.rows, found.centers)


def _nothing(bench: _Workshop, level: Level) -> tuple[Row, np.ndarray]:
    found, pictures = bench.blank()
    return Row(level, 0.0, 0.5, 0.01, None, found), pictures


def _known_seed(scene: Scene, seed: int) -> float:
    rows = scene.attacked.rows
    sent = perturb(rows, 0.6, generator(seed, "attack", "known"))
    return _named(scene, without_noise(sent, 0.6, generator(seed, "attack", "known")).astype(np.float32), seed)


def _region_sweep(scene: Scene) -> list[dict[str, float]]:
    """Membership when every client tells the means and counts of its regions once."""
    candidates, cut = np.concatenate([scene.attacked.rows, scene.outside.rows]), len(scene.attacked)
    clients, found = len(scene.private), []
    for most in sorted({max(1, count // clients) for count in COUNTS}):
        for least in REGIONS:
            told = aggregates.own_regions([party.rows for party in scene.private], most, least)
            if not told:  # no client has so many samples
                continue
            counts = np.concatenate([each.counts for each in told if each.counts is not None])
            near = aggregates.nearest_score(told, candidates)
            ratio = aggregates.likelihood_score(told, candidates, scene.own.rows)
            found.append(
                {
                    "asked": most * clients,
                    "min_region": least,
                    "regions": len(counts),
                    "smallest": int(counts.min()),
                    "distance": area_under_roc(near[:cut], near[cut:]),
                    "likelihood": area_under_roc(ratio[:cut], ratio[cut:]),
                }
            )
    return found
