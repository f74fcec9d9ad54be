from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cofal.errors import UserError
from cofal.learning import embed as embedding
from cofal.learning.embed import embed, knn_accuracy, unit_rows
from cofal.learning.encoders import build_encoder
from cofal.rng import generator, torch_generator


def pictures(n, size=8, channels=1):
    return generator(0, "pictures").integers(0, 256, (n, size, size, channels), dtype=np.uint8)


@pytest.mark.parametrize(("name", "size", "channels"), [("resnet-tiny", 8, 1), ("resnet-small", 32, 3)])
def test_embeddings_are_unit_rows_whatever_the_batch(name, size, channels):
    encoder = build_encoder(name, channels, torch_generator(0))
    images = pictures(40, size, channels)
    whole = embed(encoder, images)
    assert whole.shape == (40, encoder.feature_dim)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1.0, atol=1e-5)
    for batch_size in (3, 16, 39):
        np.testing.assert_allclose(embed(encoder, images, batch_size=batch_size), whole, atol=2e-6)
    np.testing.assert_array_equal(embed(encoder, images), whole)


def test_embedding_uses_and_keeps_the_running_statistics():
    encoder = build_encoder("resnet-tiny", 1, torch_generator(0)).train()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    alone = embed(encoder, pictures(5)[:1])
    np.testing.assert_allclose(embed(encoder, pictures(5))[:1], alone, atol=2e-6)
    assert all(torch.equal(before[key], value) for key, value in encoder.state_dict().items())


def test_a_zero_feature_stays_zero():
    class Dark(nn.Module):
        feature_dim = 3

        def forward(self, images):
            return images.flatten(1)[:, :3].float()

    images = np.zeros((2, 4, 4, 1), dtype=np.uint8)
    images[1] = 9
    np.testing.assert_allclose(embed(Dark(), images), [[0, 0, 0], [3**-0.5] * 3], atol=1e-6)


def test_no_images_give_no_rows():
    encoder = build_encoder("resnet-tiny", 1, torch_generator(0))
    assert embed(encoder, pictures(0)).shape == (0, encoder.feature_dim)


def test_a_memmap_and_a_plain_function_will_do(tmp_path):
    np.save(tmp_path / "images.npy", pictures(9))
    images = np.load(tmp_path / "images.npy", mmap_mode="r")
    encoder = build_encoder("resnet-tiny", 1, torch_generator(0))
    np.testing.assert_array_equal(embed(encoder, images), embed(encoder, pictures(9)))
    pixels = embed(lambda batch: batch.reshape(len(batch), -1), images, batch_size=4)
    np.testing.assert_array_equal(pixels, unit_rows(pictures(9).reshape(9, -1)))


def naive_knn(train_x, train_y, test_x, test_y, k):
    correct = 0
    for x, y in zip(test_x, test_y):
        similar = [-float(np.dot(x, row) / np.linalg.norm(row)) for row in train_x.astype(np.float64)]
        nearest = sorted(range(len(train_x)), key=lambda i: (round(similar[i], 6), i))[:k]
        votes = Counter(int(train_y[i]) for i in nearest)
        winner = min(votes, key=lambda label: (-votes[label], label))
        correct += winner == y
    return correct / len(test_x)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 25), st.integers(1, 12), st.integers(1, 30), st.integers(2, 4), st.integers(0, 999))
def test_knn_equals_the_naive_vote(n, m, k, classes, seed):
    rng = generator(seed)
    train_x, test_x = rng.normal(size=(n, 5)), rng.normal(size=(m, 5))
    train_y, test_y = rng.integers(0, classes, n) * 3, rng.integers(0, classes, m) * 3
    assert knn_accuracy(train_x, train_y, test_x, test_y, k) == pytest.approx(
        naive_knn(train_x, train_y, test_x, test_y, k)
    )


def test_knn_ties_are_settled_by_position_then_by_label(monkeypatch):
    train = np.ones((4, 2))
    assert knn_accuracy(train, [5, 5, 1, 1], np.ones((1, 2)), [5], k=2) == 1.0  # equally near: the first two rows
    assert knn_accuracy(train, [5, 5, 1, 1], np.ones((1, 2)), [1], k=4) == 1.0  # equal votes: the lowest label
    rng = generator(1)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    whole = knn_accuracy(x, y, x + 0.3, y)
    monkeypatch.setattr(embedding, "_TILE", 7)
    assert knn_accuracy(x, y, x + 0.3, y) == whole


@pytest.mark.parametrize(("rows", "k"), [(0, 10), (3, 0)])
def test_knn_refuses_what_has_no_answer(rows, k):
    with pytest.raises(UserError):
        knn_accuracy(np.ones((rows, 2)), np.zeros(rows), np.ones((1, 2)), np.zeros(1), k)
