"""Phase I: what the federation costs over a bare PyTorch loop, and what the learned embedding is worth on CIFAR-10."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.data import cifar10
from cofal.config import Config, load
from cofal.data.imageset import ImageSet
from cofal.federation.client_app import app as client_app
from cofal.federation.embedded import prepare
from cofal.federation.fleet import Fleet
from cofal.federation.grid import InProcessGrid
from cofal.federation.phases.pretrain import pretrain
from cofal.federation.site import open_site
from cofal.learning.embed import embed, knn_accuracy
from cofal.learning.encoders import build_encoder
from cofal.learning.simclr import build_simclr, nt_xent
from cofal.learning.state import load_encoder
from cofal.learning.views import make_views
from cofal.rng import generator, torch_generator
from cofal.rundir import RunDir

Figure = dict[str, Any]


def main(quick: bool) -> dict[str, Figure]:
    """Figures with their targets; CIFAR-10 is measured where benchmarks/data.py finds it."""
    figures = {"embedded round / bare loop": {"value": overhead(quick), "target": 1.10, "at_most": True}}
    data = cifar10()
    if data and not quick:
        figures |= cifar(data)
    return figures


def overhead(quick: bool) -> float:
    """Seconds of a federated round with two clients over those of the same work in a bare loop; median of pairs."""
    images = generator(0, "bench").integers(0, 256, (1024 if quick else 4096, 32, 32, 3), dtype=np.uint8)
    repeats = 3 if quick else 7
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "noise.npz"
        np.savez(file, images=images, labels=np.arange(len(images)) % 10)
        config = load(
            "cifar10-cpu",
            [
                "data.source=npz",
                f"data.path={file}",
                "data.limit=100000",
                "pretrain.rounds=1",
                "pretrain.probe_every=0",
                "pretrain.optimizer=sgd",
                "pretrain.lr=0.1",
            ],
        )
        ratios = []
        for repeat in range(repeats + 1):
            bare = _bare_seconds(config, images[: int(0.8 * len(images))])
            federated = _federated_seconds(config, RunDir(Path(folder) / f"run{repeat}"), Path(folder) / "cache")
            ratios.append(federated / bare)
        return statistics.median(ratios[1:])  # the first pair warms up


def _fleet(config: Config, run: RunDir, cache: Path) -> Fleet:
    run.path.mkdir(parents=True)
    run.open(config)
    count = prepare(config, run, cache)
    grid = InProcessGrid(client_app, {k + 2: {"site": str(run.sites / f"site-{k}")} for k in range(count)})
    return Fleet.gather(grid, expected=count, timeout=60)


def _federated_seconds(config: Config, run: RunDir, cache: Path) -> float:
    fleet = _fleet(config, run, cache)
    start = time.perf_counter()
    pretrain(fleet, config, run, None)
    return time.perf_counter() - start


def _bare_seconds(config: Config, images: np.ndarray) -> float:
    """What a researcher would write: one model, an optimiser, a loop over shuffled batches of each half."""
    settings = config.pretrain
    stream = torch_generator(0, "bare")
    model = build_simclr(config.encoder.arch, 3, stream).train()
    views = make_views("natural", 32, 3)
    start = time.perf_counter()
    for half in np.array_split(images, 2):
        optimiser = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
        pixels = torch.from_numpy(half).permute(0, 3, 1, 2)
        for chosen in torch.randperm(len(half), generator=stream).split(settings.batch_size):
            first, second = views(pixels[chosen], stream)
            z1, z2 = model(torch.cat([first, second])).chunk(2)
            loss = nt_xent(F.normalize(z1, dim=1), F.normalize(z2, dim=1), settings.temperature)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return time.perf_counter() - start


def cifar(data: Path) -> dict[str, Figure]:
    """10-nearest-neighbour accuracy of the CPU preset's encoder against raw pixels and an untrained encoder."""
    config = load("cifar10-cpu", [f"data.path={data}"])
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder) / "run")
        fleet = _fleet(config, run, Path(folder) / "cache")
        test = ImageSet.open(run.server / "test")
        start = time.perf_counter()
        pretrain(fleet, config, run, test)
        seconds = time.perf_counter() - start
        sites = [open_site(run.sites / name) for name in fleet.names]
        images, labels = (
            np.concatenate([s.train.images for s in sites]),
            np.concatenate([s.train.labels for s in sites]),
        )

        def probe(represent: Any) -> float:
            return knn_accuracy(represent(images), labels, represent(test.images), test.labels)

        learned = load_encoder(run.encoder)
        untrained = build_encoder(config.encoder.arch, 3, torch_generator(0, "untrained"))
        pixels = probe(lambda x: x.reshape(len(x), -1).astype(np.float32))
        random, trained = probe(lambda x: embed(untrained, x)), probe(lambda x: embed(learned, x))
    return {
        "CIFAR-10 10-NN, learned": {"value": trained, "target": max(pixels, random), "at_most": False},
        "CIFAR-10 10-NN, raw pixels": {"value": pixels, "target": 0, "at_most": False},
        "CIFAR-10 10-NN, untrained": {"value": random, "target": 0, "at_most": False},
        "CIFAR-10 seconds a round": {"value": seconds / config.pretrain.rounds, "target": 60, "at_most": True},
    }
