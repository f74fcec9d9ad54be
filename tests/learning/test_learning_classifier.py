import numpy as np
import pytest
import torch

from cofal.learning.classifier import build_classifier, classify, train_classifier
from cofal.learning.state import encoder_digest, state_to_arrays
from cofal.learning.views import make_augmentation
from cofal.rng import generator, torch_generator

RECIPE = {
    "epochs": 1,
    "batch_size": 16,
    "lr": 5e-3,
    "optimizer": "adamw",
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "augment": make_augmentation("glyph", 8, 1),
}


def bars(n, seed=0):
    """Noise with a bright horizontal (class 0) or vertical (class 1) bar."""
    rng = generator(seed, "bars")
    y = np.arange(n) % 2
    images = rng.integers(0, 80, (n, 8, 8, 1), dtype=np.uint8)
    for image, label in zip(images, y):
        place = rng.integers(2, 6)
        if label:
            image[:, place] = 255
        else:
            image[place] = 255
    return images, y


def test_it_learns_from_few_images():
    images, y = bars(240)
    model = build_classifier("resnet-tiny", 1, 2, torch_generator(0))
    train_classifier(model, images[:40], y[:40], generator=torch_generator(1), **{**RECIPE, "epochs": 15})
    p = classify(model, images[40:], batch_size=64)
    assert p.shape == (200, 2)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-5)
    assert (p.argmax(axis=1) == y[40:]).mean() > 0.9


def test_same_seed_same_bits_and_the_global_generator_is_untouched():
    images, y = bars(20)
    before, digests = torch.get_rng_state(), []
    for seed in (1, 1, 2):
        model = build_classifier("resnet-tiny", 1, 2, torch_generator(0))
        train_classifier(model, images, y, generator=torch_generator(seed), **RECIPE)
        digests.append(encoder_digest(state_to_arrays(model)))
    assert torch.equal(torch.get_rng_state(), before)
    assert digests[0] == digests[1] != digests[2]


def test_no_labels_no_change():
    images, y = bars(0)
    model = build_classifier("resnet-tiny", 1, 2, torch_generator(0))
    before = encoder_digest(state_to_arrays(model))
    assert train_classifier(model, images, y, generator=torch_generator(1), **RECIPE) == 0.0
    assert encoder_digest(state_to_arrays(model)) == before
    assert classify(model, images).shape == (0, 2)


@pytest.mark.parametrize("n", [1, 2, 3, 17])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_any_number_of_labels_trains(n, optimizer):
    images, y = bars(n)
    model = build_classifier("resnet-tiny", 1, 2, torch_generator(0))
    assert train_classifier(model, images, y, generator=torch_generator(1), **{**RECIPE, "optimizer": optimizer}) > 0
    assert all(np.isfinite(value).all() for value in state_to_arrays(model).values())
