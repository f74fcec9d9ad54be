"""The models that travel: a small description says what to build, the arrays say with which weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cofal.errors import UserError
from cofal.federation.messages import to_json
from cofal.learning.classifier import build_classifier
from cofal.learning.encoders import build_encoder
from cofal.learning.head import build_head
from cofal.learning.simclr import build_simclr
from cofal.learning.state import arrays_to_state

Description = Mapping[str, Any]


def simclr_model(arch: str, channels: int) -> dict[str, Any]:
    return {"kind": "simclr", "arch": arch, "channels": channels}


def encoder_model(arch: str, channels: int) -> dict[str, Any]:
    return {"kind": "encoder", "arch": arch, "channels": channels}


def head_model(d: int, hidden: int, classes: int) -> dict[str, Any]:
    return {"kind": "head", "d": d, "hidden": hidden, "classes": classes}


def image_model(arch: str, channels: int, classes: int) -> dict[str, Any]:
    return {"kind": "image", "arch": arch, "channels": channels, "classes": classes}


def build(description: Description, generator: torch.Generator) -> Any:
    """A fresh module of the described kind, its weights drawn from `generator`."""
    kind = description.get("kind")
    if kind == "simclr":
        return build_simclr(str(description["arch"]), int(description["channels"]), generator)
    if kind == "encoder":
        return build_encoder(str(description["arch"]), int(description["channels"]), generator)
    if kind == "head":
        return build_head(int(description["d"]), int(description["hidden"]), int(description["classes"]), generator)
    if kind == "image":
        return build_classifier(
            str(description["arch"]), int(description["channels"]), int(description["classes"]), generator
        )
    raise UserError(f"cannot build a model of kind {kind!r}; known: simclr, encoder, head, image")


def rebuild(description: Description, arrays: Mapping[str, np.ndarray]) -> Any:
    """The described model with the given state; the module is reused, state and all, by the next call."""
    model = _skeleton(to_json(dict(description)))
    arrays_to_state(model, arrays)
    return model


def frozen_digest(spec: str) -> str:
    """What tells one public encoder from another: the bytes of a model file, the name of a callable."""
    path = Path(spec)
    return hashlib.sha256(path.read_bytes() if path.is_file() else spec.encode()).hexdigest()[:16]


@lru_cache(maxsize=4)
def _skeleton(description: str) -> Any:
    return build(json.loads(description), torch.Generator())
