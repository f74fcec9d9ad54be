"""Phase III: FedAvg of the classifier on the labels that the sites hold, and its evaluation."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flwr.app import RecordDict

from cofal.config import Config
from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation import models
from cofal.federation.fleet import Fleet, Unusable
from cofal.federation.phases.pretrain import Encoder
from cofal.federation.rounds import make_strategy, train_rounds
from cofal.files import read_json, write_json
from cofal.learning.classifier import classify
from cofal.learning.embed import embed
from cofal.learning.head import predict_proba
from cofal.learning.simclr import cosine_lr
from cofal.learning.state import save_arrays, state_to_arrays
from cofal.rng import torch_generator
from cofal.rundir import RunDir


class Examiner:
    """Accuracy of a classifier: on the server's own test set, or asked of the sites that hold test images."""

    def __init__(self, fleet: Fleet, config: Config, encoder: Encoder, test: ImageSet | None):
        self.fleet, self.config, self.encoder, self.test = fleet, config, encoder, test
        self._embedded: np.ndarray | None = None
        if config.train.evaluate == "server" and test is None:
            raise UserError("train.evaluate = 'server' but the server holds no test set; use 'clients'")
        if config.train.evaluate == "clients" and not any(member.test_samples for member in fleet.members.values()):
            raise UserError("train.evaluate = 'clients' but no site holds test images; use 'server'")

    def __call__(self, description: models.Description, arrays: dict[str, np.ndarray]) -> float:
        if self.config.train.evaluate == "clients":
            return self._by_sites(description, arrays)
        assert self.test is not None
        return accuracy(description, arrays, self._inputs(description), self.test.labels)

    def _inputs(self, description: models.Description) -> np.ndarray:
        assert self.test is not None
        if description["kind"] == "image":
            return self.test.images
        if self._embedded is None:
            self._embedded = embed(self.encoder.network, self.test.images, device=self.config.engine.device)
        return self._embedded

    def _by_sites(self, description: models.Description, arrays: dict[str, np.ndarray]) -> float:
        """Federated evaluation: every site counts on its own test images; the counts are added."""
        self.fleet.phase = "evaluate"
        told = {
            "model": m.to_json(dict(description)),
            "encoder": m.to_json(self.encoder.model),
            "digest": self.encoder.digest,
        }
        holders = [name for name, member in self.fleet.members.items() if member.test_samples]
        merged = {**{f"model/{key}": value for key, value in arrays.items()}}
        if description["kind"] == "head":
            merged |= {f"encoder/{key}": value for key, value in self.encoder.arrays.items()}
        content = m.pack(arrays=merged, config=told)
        counts = self.fleet.ask(m.EVALUATE, dict.fromkeys(holders, content), self._counts).values()
        return sum(correct for correct, _ in counts) / sum(tested for _, tested in counts)

    def _counts(self, name: str, content: RecordDict) -> tuple[int, int]:
        """How many test images a site got right, and how many it has."""
        said = m.metrics_of(content)
        correct, tested = said.get("correct"), said.get(m.EXAMPLES)
        if (
            tested != self.fleet.members[name].test_samples
            or not isinstance(correct, int)
            or not 0 <= correct <= tested
        ):
            raise Unusable(f"{str(correct)[:40]} of {str(tested)[:40]} test images cannot be right")
        return correct, tested


def accuracy(
    description: models.Description, arrays: dict[str, np.ndarray], inputs: np.ndarray, labels: np.ndarray
) -> float:
    """Share of `inputs` (embeddings for a head, images for an image network) whose most probable class is the label."""
    model = models.rebuild(description, arrays)
    probabilities = classify(model, inputs) if description["kind"] == "image" else predict_proba(model, inputs)
    return float((probabilities.argmax(axis=1) == labels).mean())


def train_cell(
    fleet: Fleet,
    config: Config,
    run: RunDir,
    encoder: Encoder,
    dimension: int,
    examiner: Examiner,
    cell: dict[str, Any],
) -> dict[str, Any]:
    """Train and evaluate one classifier on embeddings of `dimension`, or on images; a finished cell is read back.

    `cell` says which: its track, method, coordination and budget; where people label also the number of the training,
    since the same number of labels may be other labels.
    """
    track, budget = cell["track"], cell["budget"]
    file = run.cell(track, budget)
    if file.exists() and (found := read_json(file)).get("training") == cell.get("training"):
        return found
    settings = config.train
    member = next(iter(fleet.members.values()))
    if settings.model == "head":
        description = models.head_model(dimension, settings.hidden, len(member.classes))
    else:
        description = models.image_model(settings.arch, member.image_shape[2], len(member.classes))
    job = settings.model
    told = {
        "job": job, "track": track, "model": m.to_json(description), "seed": config.seed, "digest": encoder.digest,
        "local-epochs": settings.local_epochs, "batch-size": settings.batch_size, "optimizer": settings.optimizer,
        "momentum": settings.momentum, "weight-decay": settings.weight_decay, "views": config.pretrain.views,
    }  # fmt: skip
    clock = time.monotonic()
    fleet.phase = "train"
    checkpoint = run.checkpoint(f"{track}-t{cell['training']}" if "training" in cell else f"{track}-b{budget}")
    last: dict[str, Any] = {}
    arrays = train_rounds(
        fleet,
        make_strategy(settings.strategy, settings.strategy_options),
        state_to_arrays(models.build(description, torch_generator(config.seed, job))),
        rounds=settings.rounds,
        config=lambda number: {**told, "lr": cosine_lr(settings.lr, number - 1, settings.rounds)},
        checkpoint=checkpoint,
        pause=2.0,  # rounds of milliseconds are not worth a file each
        on_round=lambda number, arrays, metrics: last.update(metrics),
    )
    result = {
        **cell, "seed": config.seed, "accuracy": examiner(description, arrays), "rounds": settings.rounds,
        "seconds": time.monotonic() - clock,
    }  # fmt: skip
    metadata = {
        "description": m.to_json(description), "classes": m.to_json(member.classes), "encoder": encoder.digest,
        "image_shape": m.to_json(member.image_shape),
    }  # fmt: skip
    save_arrays(run.model(track), arrays, metadata)
    write_json(file, result)
    checkpoint.unlink(missing_ok=True)
    return result
