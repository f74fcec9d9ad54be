"""Federated SimCLR on CIFAR-10 at CPU size: nearest-neighbour accuracy against raw pixels and a random encoder.

python -m benchmarks.learning_cifar --data data/cifar10 [--rounds 20] [--images 10000]
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from cofal.learning.embed import embed, knn_accuracy
from cofal.learning.simclr import build_simclr, cosine_lr, train_simclr
from cofal.learning.state import arrays_to_state, state_to_arrays
from cofal.learning.views import make_views
from cofal.rng import generator, torch_generator


def load(path: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` images (n, 32, 32, 3) uint8 and labels of a parquet file."""
    table = pq.read_table(path).slice(0, count)
    column = "img" if "img" in table.column_names else "image"
    images = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in table[column].to_pylist()]
    return np.stack(images), table["label"].to_numpy()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True, help="folder with train.parquet and test.parquet")
    options.add_argument("--images", type=int, default=10_000)
    options.add_argument("--clients", type=int, default=2)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--lr", type=float, default=0.002)
    options.add_argument("--optimizer", default="adamw")
    options.add_argument("--weight-decay", type=float, default=1e-4)
    options.add_argument("--temperature", type=float, default=0.2)
    options.add_argument("--warmup", type=int, default=1)
    options.add_argument("--encoder", default="resnet-small")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()

    train_x, train_y = load(given.data / "train.parquet", given.images)
    test_x, test_y = load(given.data / "test.parquet", 2000)
    model = build_simclr(given.encoder, 3, torch_generator(given.seed, "init"))

    def probe() -> float:
        return knn_accuracy(embed(model.encoder, train_x), train_y, embed(model.encoder, test_x), test_y)

    flat = knn_accuracy(train_x.reshape(len(train_x), -1), train_y, test_x.reshape(len(test_x), -1), test_y)
    print(f"10-NN accuracy: raw pixels {flat:.4f}, random encoder {probe():.4f}", flush=True)

    parts = np.array_split(generator(given.seed, "split").permutation(len(train_x)), given.clients)
    streams = [torch_generator(given.seed, "client", k) for k in range(given.clients)]
    views = make_views("natural", 32, 3)
    state = state_to_arrays(model)
    for number in range(given.rounds):
        start = time.perf_counter()
        lr = cosine_lr(given.lr, number, given.rounds, given.warmup)
        states, losses = [], []
        for part, stream in zip(parts, streams):
            arrays_to_state(model, state)
            losses.append(
                train_simclr(
                    model, train_x[part], epochs=1, batch_size=given.batch, lr=lr, optimizer=given.optimizer,
                    momentum=0.9, weight_decay=given.weight_decay, temperature=given.temperature, views=views,
                    generator=stream,
                )
            )  # fmt: skip
            states.append(state_to_arrays(model))
        weights = [len(part) / len(train_x) for part in parts]
        state = {key: sum(w * s[key] for w, s in zip(weights, states)) for key in state}
        arrays_to_state(model, state)
        took = time.perf_counter() - start
        accuracy = f", 10-NN {probe():.4f}" if number % 5 == 4 or number == given.rounds - 1 else ""
        print(f"round {number + 1:3d}: {took:5.1f} s, lr {lr:.4f}, loss {np.mean(losses):.3f}{accuracy}", flush=True)


if __name__ == "__main__":
    main()
