"""From images to unit embeddings, and the nearest-neighbour probe that says how good those are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from cofal.errors import UserError
from cofal.learning.batches import images_to_tensor

_TILE = 1024  # test rows compared with all training rows at a time
_FEWEST = 16  # images a network sees at once: for fewer, convolutions may take another path and round differently


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows of (n, d) scaled to length 1 as float32; a row of zeros stays zero."""
    x = np.asarray(x, dtype=np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def embed(
    encoder: nn.Module | Callable[[np.ndarray], np.ndarray],
    images: np.ndarray,
    *,
    batch_size: int = 512,
    device: str | torch.device = "cpu",
) -> np.ndarray:
    """Unit embeddings (n, d) float32 of images (n, h, w, c) uint8, read batch by batch.

    `encoder` is a module of `cofal.learning.encoders` or a frozen one of `cofal.learning.frozen`. On a CPU the batch
    size does not change the result (the same bits wherever we have looked; libraries promise only rounding error).
    """
    encode = _module_encoder(encoder, device) if isinstance(encoder, nn.Module) else encoder
    parts = [unit_rows(encode(images[i : i + batch_size])) for i in range(0, len(images), batch_size)]
    if not parts:
        width = getattr(encoder, "feature_dim", 0)
        return np.zeros((0, width), dtype=np.float32)
    return np.concatenate(parts)


def _module_encoder(encoder: nn.Module, device: str | torch.device) -> Callable[[np.ndarray], np.ndarray]:
    encoder.to(device).eval()

    def encode(batch: np.ndarray) -> np.ndarray:
        short = max(0, _FEWEST - len(batch))
        filled = np.pad(batch, ((0, short), (0, 0), (0, 0), (0, 0))) if short else batch
        with torch.inference_mode():
            return encoder(images_to_tensor(filled, device))[: len(batch)].cpu().numpy()

    return encode


def knn_accuracy(
    train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray, k: int = 10
) -> float:
    """Accuracy of the k-nearest-neighbour vote under cosine similarity.

    Neighbours of equal similarity are taken in the order of the training rows; of classes with equal votes the lowest
    wins.
    """
    if len(train_x) == 0 or len(test_x) == 0:
        raise UserError("the nearest-neighbour probe needs at least one training and one test sample")
    if k < 1:
        raise UserError(f"the nearest-neighbour probe needs k of at least 1, not {k}")
    k = min(k, len(train_x))
    train, test = unit_rows(train_x), unit_rows(test_x)
    classes, codes = np.unique(train_y, return_inverse=True)
    one_hot = np.eye(len(classes), dtype=np.float32)[codes]
    correct = 0
    for start in range(0, len(test), _TILE):
        similarity = test[start : start + _TILE] @ train.T
        bar = np.partition(similarity, -k, axis=1)[:, -k, None]
        nearer = similarity > bar
        level = similarity == bar
        room = k - nearer.sum(axis=1, keepdims=True)
        chosen = nearer | (level & (np.cumsum(level, axis=1) <= room))
        votes = chosen.astype(np.float32) @ one_hot
        correct += int((classes[votes.argmax(axis=1)] == np.asarray(test_y)[start : start + _TILE]).sum())
    return correct / len(test)
