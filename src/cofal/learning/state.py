"""A module's whole state as named arrays, and the model files made of them (safetensors with metadata)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
import torch
from torch import nn

from cofal.errors import UserError
from cofal.files import atomic
from cofal.learning.encoders import ENCODERS, ResNet, build_encoder
from cofal.learning.head import Head, build_head

FORMAT = "cofal-1"
_KINDS = {  # numpy's names of types and those of safetensors
    "float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL", "uint8": "U8",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
}  # fmt: skip


def state_to_arrays(module: nn.Module) -> dict[str, np.ndarray]:
    """Copies of all parameters and buffers, BatchNorm's statistics and counters included, in the module's own order."""
    return {key: np.array(value.detach().cpu().numpy(), order="C") for key, value in module.state_dict().items()}


def arrays_to_state(module: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Load `arrays` into `module` in place; every key must be there with its shape, and none besides.

    Values are cast to the module's types; counters that an average has made fractional are rounded.
    """
    state = module.state_dict()
    missing = [key for key in state if key not in arrays]
    if missing:
        raise UserError(
            f"the model state lacks {missing[0]!r} ({len(missing)} missing); was it saved from another model?"
        )
    unknown = [key for key in arrays if key not in state]
    if unknown:
        raise UserError(
            f"the model state has {unknown[0]!r}, which this model has not; was it saved from another model?"
        )
    values = {}
    for key, tensor in state.items():
        value = np.asarray(arrays[key])
        if value.shape != tuple(tensor.shape):
            raise UserError(
                f"the model state has {key!r} of shape {value.shape}, but this model's is {tuple(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            value = np.rint(value)
        values[key] = torch.from_numpy(np.array(value)).to(tensor.dtype)
    with torch.no_grad():
        for key, tensor in state.items():  # the tensors of state_dict are the module's own
            tensor.copy_(values[key])


def encoder_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 (hex) over names, types, shapes and bytes, independent of the order of the keys."""
    sha = hashlib.sha256()
    for key in sorted(arrays):
        value = np.ascontiguousarray(arrays[key]).reshape(np.shape(arrays[key]))
        sha.update(f"{key}\x1f{value.dtype.str}\x1f{value.shape}\x1f".encode())
        sha.update(value.tobytes())
    return sha.hexdigest()


def save_arrays(path: Path | str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically; equal arrays and metadata are equal files.

    Written here, array by array: the library holds everything twice in memory and shuffles the metadata.
    """
    ordered = sorted(arrays.items(), key=lambda item: (-np.asarray(item[1]).itemsize, item[0]))  # keeps all aligned
    header: dict[str, object] = {"__metadata__": dict(sorted({"format": FORMAT, **metadata}.items()))}
    end = 0
    for key, value in ordered:
        start, end = end, end + np.asarray(value).nbytes
        kind = _KINDS[np.asarray(value).dtype.name]
        header[key] = {"dtype": kind, "shape": list(np.shape(value)), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, value in ordered:
            file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


def load_arrays(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and the metadata of a safetensors file."""
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except FileNotFoundError as error:
        raise UserError(f"no model file {path}; check the path") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); save or copy it again") from error


def save_encoder(path: Path | str, encoder: ResNet, image_size: int) -> None:
    """Write an encoder with all that is needed to use it: architecture, channels, image size, normalisation."""
    metadata = {
        "kind": "encoder",
        "architecture": encoder.name,
        "channels": str(encoder.channels),
        "image_size": str(image_size),
        "pixel_mean": repr(encoder.pixel_mean),
        "pixel_std": repr(encoder.pixel_std),
    }
    save_arrays(path, state_to_arrays(encoder), metadata)


def load_encoder(path: Path | str) -> ResNet:
    """Rebuild the encoder saved in `path`, ready to embed; `.image_size` is the size it was trained on."""
    arrays, metadata = load_arrays(path)
    if metadata.get("kind") != "encoder" or metadata.get("architecture") not in ENCODERS:
        raise UserError(f"{path} holds no encoder saved by cofal; choose a file written by a cofal run")
    encoder = build_encoder(metadata["architecture"], int(metadata["channels"]), None)
    arrays_to_state(encoder, arrays)
    encoder.image_size = int(metadata["image_size"])
    encoder.pixel_mean, encoder.pixel_std = float(metadata["pixel_mean"]), float(metadata["pixel_std"])
    return encoder.eval()


def save_head(path: Path | str, head: Head, metadata: Mapping[str, str] | None = None) -> None:
    """Write a classifier head; `metadata` may carry more, such as the classes' names."""
    sizes = {"d": str(head.d), "hidden": str(head.hidden), "classes": str(head.classes)}
    save_arrays(path, state_to_arrays(head), {**(metadata or {}), "kind": "head", **sizes})


def load_head(path: Path | str) -> tuple[Head, dict[str, str]]:
    """The head saved in `path` and the file's metadata."""
    arrays, metadata = load_arrays(path)
    if metadata.get("kind") != "head":
        raise UserError(f"{path} holds no classifier head saved by cofal; choose a file written by a cofal run")
    head = build_head(int(metadata["d"]), int(metadata["hidden"]), int(metadata["classes"]), None)
    arrays_to_state(head, arrays)
    return head, metadata
