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
from cofal.learning.encoders import ENCODERS, build_encoder
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


_MOST = 2**16  # channels, classes, dimensions, hidden units: more is a mistake, or an attempt to fill the memory
_MOST_WEIGHTS = 2**27  # of a head


def _sizes(description: Description, *names: str) -> list[int]:
    """The named sizes of a description that another machine sent, each checked before anything is allocated."""
    found = [description.get(name) for name in names]
    for name, size in zip(names, found):
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST:
            raise UserError(f"a model with {name} = {str(size)[:40]} cannot be built; send 1 to {_MOST}")
    return [int(str(size)) for size in found]


def build(description: Description, generator: torch.Generator | None) -> Any:
    """A fresh module of the described kind, its weights drawn from `generator`, or unset, to be loaded."""
    kind = description.get("kind")
    if kind == "simclr":
        return build_simclr(_arch(description), _sizes(description, "channels")[0], generator)
    if kind == "encoder":
        return build_encoder(_arch(description), _sizes(description, "channels")[0], generator)
    if kind == "head":
        d, hidden, classes = _sizes(description, "d", "hidden", "classes")
        if hidden * (d + classes) > _MOST_WEIGHTS:
            raise UserError(f"a head of {d} x {hidden} x {classes} is too large; the most is {_MOST_WEIGHTS} weights")
        return build_head(d, hidden, classes, generator)
    if kind == "image":
        channels, classes = _sizes(description, "channels", "classes")
        return build_classifier(_arch(description), channels, classes, generator)
    raise UserError(f"cannot build a model of kind {str(kind)[:40]!r}; known: simclr, encoder, head, image")


def _arch(description: Description) -> str:
    arch = description.get("arch")
    if arch not in ENCODERS:
        raise UserError(f"there is no network {str(arch)[:40]!r}; known: {', '.join(ENCODERS)}")
    return str(arch)


def rebuild(description: Description, arrays: Mapping[str, np.ndarray]) -> Any:
    """The described model with the given state; the module is reused, state and all, by the next call."""
    if not isinstance(description, Mapping):
        raise UserError("a model is described by names and values; use the same version of cofal at server and sites")
    model = _skeleton(to_json(dict(description)))
    arrays_to_state(model, arrays)
    return model


def frozen_digest(spec: str) -> str:
    """What tells one public encoder from another: the bytes of a model file, the name of a callable."""
    path = Path(spec)
    return hashlib.sha256(path.read_bytes() if path.is_file() else spec.encode()).hexdigest()[:16]


@lru_cache(maxsize=4)
def _skeleton(description: str) -> Any:
    return build(json.loads(description), None)
