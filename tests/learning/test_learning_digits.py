"""The recipe of the demo, end to end on scikit-learn's digits: four alike clients, FedAvg of the whole state."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cofal.learning.embed import embed, knn_accuracy
from cofal.learning.simclr import build_simclr, cosine_lr, train_simclr
from cofal.learning.state import arrays_to_state, state_to_arrays
from cofal.learning.views import make_views
from cofal.rng import generator, torch_generator


def digits(seed):
    """Two random halves of the digits, as uint8 (n, 8, 8, 1) with labels: to train on, and held out."""
    data = load_digits()
    order = generator(seed, "halves").permutation(len(data.target))
    images = np.round(data.images * (255 / 16)).astype(np.uint8)[order, ..., None]
    labels, half = data.target[order], len(order) // 2
    return images[:half], labels[:half], images[half:], labels[half:]


def federated_simclr(images, clients, rounds, seed):
    """FedAvg over IID clients, one local epoch a round, weighted by size, BatchNorm's buffers included."""
    model = build_simclr("resnet-tiny", 1, torch_generator(seed, "init"))
    parts = np.array_split(generator(seed, "split").permutation(len(images)), clients)
    streams = [torch_generator(seed, "client", k) for k in range(clients)]
    views, state = make_views("glyph", 8, 1), state_to_arrays(model)
    for number in range(rounds):
        states = []
        for part, stream in zip(parts, streams):
            arrays_to_state(model, state)
            train_simclr(
                model,
                images[part],
                epochs=1,
                batch_size=160,
                lr=cosine_lr(0.01, number, rounds),
                optimizer="adamw",
                momentum=0.9,
                weight_decay=1e-4,
                temperature=0.15,
                views=views,
                generator=stream,
            )
            states.append(state_to_arrays(model))
        weights = [len(part) / len(images) for part in parts]
        state = {key: sum(w * s[key] for w, s in zip(weights, states)) for key in state}
    arrays_to_state(model, state)
    return model.encoder


@pytest.mark.slow
def test_the_federated_embedding_beats_pixels_and_a_random_encoder():
    train_x, train_y, test_x, test_y = digits(seed=0)
    random = build_simclr("resnet-tiny", 1, torch_generator(0, "init")).encoder
    learned = federated_simclr(train_x, clients=4, rounds=60, seed=0)

    def accuracy(encode):
        return knn_accuracy(encode(train_x), train_y, encode(test_x), test_y)

    by_pixels = accuracy(lambda images: images.reshape(len(images), -1))
    by_chance = accuracy(lambda images: embed(random, images))
    by_learning = accuracy(lambda images: embed(learned, images))
    print(f"10-NN accuracy: pixels {by_pixels:.4f}, random encoder {by_chance:.4f}, learned {by_learning:.4f}")
    assert by_learning > by_pixels + 0.003
    assert by_learning > by_chance + 0.05
