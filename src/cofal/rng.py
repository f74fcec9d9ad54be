"""Named random streams: every consumer of randomness gets its own generator, spawned from one seed by name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _entropy(seed: int, names: tuple[object, ...]) -> int:
    text = "\x1f".join([str(int(seed)), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def generator(seed: int, *names: object) -> np.random.Generator:
    """The numpy stream called `names` under `seed`; other names or another seed give an independent stream."""
    return np.random.default_rng(_entropy(seed, names))


def torch_generator(seed: int, *names: object) -> torch.Generator:
    """The torch stream (on the CPU) called `names` under `seed`."""
    import torch

    return torch.Generator().manual_seed(_entropy(seed, names) & 0x7FFF_FFFF_FFFF_FFFF)
