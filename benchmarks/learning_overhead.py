"""What local training costs: SimCLR against the bare loop, views against kornia's classes, one training of the head.

python -m benchmarks.learning_overhead
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import kornia.augmentation as K
import numpy as np
import torch
import torch.nn.functional as F

from cofal.learning.head import build_head, train_head
from cofal.learning.simclr import build_simclr, train_simclr
from cofal.learning.views import make_views
from cofal.rng import generator, torch_generator

BATCH, TEMPERATURE = 256, 0.2


def bare_loop(model: torch.nn.Module, images: np.ndarray, views: Callable, rng: torch.Generator) -> None:
    """One epoch of SimCLR as one would write it in a notebook."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    model.train()
    for part in torch.randperm(len(images), generator=rng).split(BATCH):
        first, second = views(torch.from_numpy(images[part.numpy()]).permute(0, 3, 1, 2), rng)
        z = F.normalize(model(torch.cat([first, second])))
        logits = (z @ z.T / TEMPERATURE).fill_diagonal_(-torch.inf)
        loss = F.cross_entropy(logits, torch.arange(len(z)).roll(len(part)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def fastest(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some calls."""
    return min(seconds(call) for _ in range(repeats))


def training(name: str, size: int, channels: int, views_name: str, n: int) -> dict[str, float]:
    """Seconds for one epoch of n images, ours and bare; the two take turns, so that both meet the same load."""
    images = generator(0, "pixels").integers(0, 256, (n, size, size, channels), dtype=np.uint8)
    model, views = build_simclr(name, channels, torch_generator(0)), make_views(views_name, size, channels)
    recipe = {"epochs": 1, "batch_size": BATCH, "lr": 0.01, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4}

    def ours() -> None:
        train_simclr(model, images, temperature=TEMPERATURE, views=views, generator=torch_generator(1), **recipe)

    def bare() -> None:
        bare_loop(model, images, views, torch_generator(1))

    pairs = [(seconds(ours), seconds(bare)) for _ in range(5)][1:]
    best_ours, best_bare = (min(times) for times in zip(*pairs))
    return {"ours_s": best_ours, "bare_s": best_bare, "ratio": best_ours / best_bare}


def views_against_kornia_classes() -> dict[str, float]:
    """Milliseconds for the two views of 256 images of 32 pixels."""
    images = torch.randint(0, 256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    ours, rng = make_views("natural", 32, 3), torch_generator(0)
    theirs = K.AugmentationSequential(
        K.RandomResizedCrop((32, 32), scale=(0.2, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
    )
    mine = fastest(lambda: ours(images, rng), 10)
    kornia = fastest(lambda: theirs(torch.cat([images, images]).float() / 255), 10)
    return {"ours_ms": 1e3 * mine, "kornia_classes_ms": 1e3 * kornia}


def head_call(d: int, epochs: int) -> float:
    """Milliseconds for one local training on 25 labelled embeddings."""
    rng = generator(0, "head")
    x, y = rng.normal(size=(25, d)).astype(np.float32), rng.integers(0, 10, 25)
    head = build_head(d, 256, 10, torch_generator(0))
    options = {"epochs": epochs, "batch_size": 64, "lr": 1e-3, "weight_decay": 1e-4, "optimizer": "adamw"}
    return 1e3 * fastest(lambda: train_head(head, x, y, generator=torch_generator(0), **options), 300)


def main() -> None:
    result = {
        "simclr resnet-small 32x32x3, 1024 images": training("resnet-small", 32, 3, "natural", 1024),
        "simclr resnet-tiny 8x8x1, 1024 images": training("resnet-tiny", 8, 1, "glyph", 1024),
        "natural views": views_against_kornia_classes(),
        "head call ms": {f"d={d} epochs={e}": head_call(d, e) for d in (64, 512) for e in (1, 5)},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
