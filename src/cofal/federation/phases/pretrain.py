"""Phase I: FedAvg of a SimCLR encoder, or a finished encoder in its place."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from cofal.config import Config
from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation import models
from cofal.federation.fleet import Fleet
from cofal.federation.rounds import make_strategy, train_rounds
from cofal.learning.embed import embed, knn_accuracy
from cofal.learning.frozen import load_frozen
from cofal.learning.simclr import cosine_lr
from cofal.learning.state import arrays_to_state, encoder_digest, load_encoder, save_encoder, state_to_arrays
from cofal.progress import bar
from cofal.rng import torch_generator
from cofal.rundir import RunDir

JOB = "encoder"


@dataclass(frozen=True)
class Encoder:
    """The shared encoder as the server hands it on: weights to send, or only the name of one that every site has."""

    digest: str
    network: Any  # a module, or a frozen callable
    arrays: dict[str, np.ndarray]  # empty for a frozen encoder: every site uses its own copy
    model: dict[str, Any]  # the description that `federation.models` rebuilds


def pretrain(fleet: Fleet, config: Config, run: RunDir, test: ImageSet | None) -> Encoder:
    """The encoder of this run: public, saved, or trained here; the latter two end as `encoder.safetensors`."""
    height, _width, channels = next(iter(fleet.members.values())).image_shape
    if config.encoder.path and not run.encoder.exists():
        given = load_encoder(config.encoder.path)
        if given.channels != channels:
            raise UserError(f"{config.encoder.path} takes {given.channels} channels, but the images have {channels}")
        save_encoder(run.encoder, given, given.image_size or height)
    if not (config.encoder.frozen or run.encoder.exists()):
        _train(fleet, config, run, test, channels, height)
    return finished_encoder(fleet, config, run)


def finished_encoder(fleet: Fleet, config: Config, run: RunDir) -> Encoder:
    """The encoder that Phase I left, or the public one."""
    if config.encoder.frozen:
        network = load_frozen(config.encoder.frozen)
        return Encoder(models.frozen_digest(config.encoder.frozen), network, {}, {"kind": "frozen"})
    if not run.encoder.exists():
        raise UserError(f"there is no encoder in {run.path} yet; run pretrain first")
    _height, _width, channels = next(iter(fleet.members.values())).image_shape
    network = load_encoder(run.encoder)
    arrays = state_to_arrays(network)
    return Encoder(encoder_digest(arrays)[:16], network, arrays, models.encoder_model(network.name, channels))


def _train(fleet: Fleet, config: Config, run: RunDir, test: ImageSet | None, channels: int, image_size: int) -> None:
    settings = config.pretrain
    description = models.simclr_model(config.encoder.arch, channels)
    model = models.build(description, torch_generator(config.seed, JOB))
    told = {
        "job": JOB, "track": "", "model": m.to_json(description), "seed": config.seed,
        "local-epochs": settings.local_epochs, "batch-size": settings.batch_size, "optimizer": settings.optimizer,
        "momentum": settings.momentum, "weight-decay": settings.weight_decay,
        "temperature": settings.temperature, "views": settings.views,
    }  # fmt: skip
    fleet.phase = "pretrain"
    finished = [line["round"] for line in run.rounds() if line["job"] == JOB]
    shown = bar("Phase I   encoder", settings.rounds)
    clock = time.monotonic()

    def resumed(last: int) -> None:
        if any(number > last for number in finished):
            run.forget_rounds_after(JOB, last)
        shown.advance(steps=last)

    def finished_round(number: int, arrays: dict[str, np.ndarray], metrics: dict[str, Any]) -> None:
        nonlocal clock
        line: dict[str, Any] = {
            "job": JOB,
            "round": number,
            "loss": metrics["loss"],
            "seconds": time.monotonic() - clock,
        }
        if (
            settings.probe_every
            and test is not None
            and (number % settings.probe_every == 0 or number == settings.rounds)
        ):
            arrays_to_state(model, arrays)
            line["knn"] = probe(model.encoder, test, config.engine.device)
        run.log_round(**line)
        shown.advance(f"loss {line['loss']:.3f}" + (f"  10-NN {line['knn']:.3f}" if "knn" in line else ""))
        clock = time.monotonic()

    arrays = train_rounds(
        fleet,
        make_strategy(settings.strategy, settings.strategy_options),
        state_to_arrays(model),
        rounds=settings.rounds,
        config=lambda number: {**told, "lr": cosine_lr(settings.lr, number - 1, settings.rounds, settings.warmup)},
        checkpoint=run.checkpoint(JOB),
        on_resume=resumed,
        on_round=finished_round,
    )
    arrays_to_state(model, arrays)
    save_encoder(run.encoder, model.encoder, image_size)
    run.checkpoint(JOB).unlink()


def probe(encoder: nn.Module, test: ImageSet, device: str) -> float:
    """10-nearest-neighbour accuracy on the server's test set: its even rows vote on its odd rows."""
    embeddings = embed(encoder, test.images, device=device)
    return knn_accuracy(embeddings[::2], test.labels[::2], embeddings[1::2], test.labels[1::2])
