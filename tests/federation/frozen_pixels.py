"""A public encoder for the tests: centred pixels."""

import numpy as np


def encode(images: np.ndarray) -> np.ndarray:
    flat = images.reshape(len(images), -1).astype(np.float32)
    return flat - flat.mean(axis=1, keepdims=True)
