"""Unit vectors to measure on: a user's embeddings, or clustered ones made here, at any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cofal.errors import UserError
from cofal.rng import generator

_CHUNK = 8192
JITTER = 0.3  # distance that a copy is moved by, where more rows are asked for than there are


def load(path: Path) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """(x_train, y_train, x_test, y_test) of an .npz with these names, or (x, None, None, None) of an .npy."""
    try:
        content = np.load(path)
        if isinstance(content, np.ndarray):
            return content, None, None, None
        return content["x_train"], content.get("y_train"), content.get("x_test"), content.get("y_test")
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"cannot read embeddings from {path} ({error}); give an .npy or an .npz with x_train"
        ) from error


def synthetic(n: int, d: int = 256, groups: int = 60) -> np.ndarray:
    """(n, d) float32: directions around `groups` centres of unequal weight, in a space whose spectrum falls off."""
    rng = generator(0, "bench", "synthetic")
    spectrum = (1 + np.arange(d)) ** -0.5
    centers = rng.normal(size=(groups, d)) * spectrum
    weights = rng.dirichlet(np.full(groups, 2.0))
    rows = np.empty((n, d), np.float32)
    for start in range(0, n, _CHUNK):
        part = rows[start : start + _CHUNK]
        part[:] = centers[rng.choice(groups, size=len(part), p=weights)]
        part += 0.8 * rng.normal(size=part.shape) * spectrum
    return rows


def write(path: Path, source: np.ndarray, n: int, dtype: str = "float32") -> None:
    """Save `n` unit rows of `source` (m, d) as .npy; beyond m, copies moved by JITTER in a random direction."""
    rng = generator(0, "bench", "jitter")
    d = source.shape[1]
    out = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(n, d))
    for start in range(0, n, _CHUNK):
        index = np.arange(start, min(start + _CHUNK, n))
        part = source[index % len(source)].astype(np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        copies = index >= len(source)
        part[copies] += JITTER / np.sqrt(d) * rng.normal(size=(int(copies.sum()), d))
        out[index] = part / np.linalg.norm(part, axis=1, keepdims=True)
    out.flush()
