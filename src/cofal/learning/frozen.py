"""Public encoders that are used as they are: a TorchScript file, an ONNX file, or a Python callable by name.

Each becomes a function from images (b, h, w, c) uint8 to features (b, d) float32, which `embed` accepts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cofal.errors import UserError
from cofal.learning.batches import images_to_tensor

FrozenEncoder = Callable[[np.ndarray], np.ndarray]


def load_frozen(spec: str) -> FrozenEncoder:
    """The encoder that `spec` names: `FILE.pt` (TorchScript), `FILE.onnx`, or `package.module:callable`.

    TorchScript and float ONNX models receive float32 (b, c, h, w) in [0, 1] and must hold their own normalisation;
    an ONNX model with a uint8 input receives the raw pixels. Where an ONNX model fixes another image size or takes
    three channels of a grey image, the images are resized and repeated to fit.
    """
    if spec.endswith((".pt", ".onnx")):
        if not Path(spec).is_file():
            raise UserError(f"no encoder file {spec}; check the path")
        return _checked(spec, _torchscript(spec) if spec.endswith(".pt") else _onnx(spec))
    if ":" in spec:
        return _checked(spec, _callable(spec))
    raise UserError(f"cannot tell what encoder {spec!r} is; give a .pt or .onnx file or package.module:callable")


def _checked(spec: str, encode: FrozenEncoder) -> FrozenEncoder:
    """`encode` with its result held to (b, d) finite float32."""

    def checked(images: np.ndarray) -> np.ndarray:
        features = np.asarray(encode(images), dtype=np.float32)
        if features.ndim > 2 and len(features) == len(images):
            features = features.reshape(len(images), -1)  # (b, d, 1, 1), as pooled networks often return
        if features.ndim != 2 or len(features) != len(images):
            raise UserError(
                f"encoder {spec} gave an array of shape {features.shape} for {len(images)} images; "
                f"it must return ({len(images)}, d)"
            )
        if not np.isfinite(features).all():
            raise UserError(f"encoder {spec} gave features that are not finite numbers; check its input range")
        return features

    return checked


def _torchscript(path: str) -> FrozenEncoder:
    try:
        module = torch.jit.load(path, map_location="cpu").eval()
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path} is not a TorchScript file ({reason}); save it with torch.jit.save") from error

    def encode(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(images_to_tensor(images).float().div_(255.0)).numpy()

    return encode


def _onnx(path: str) -> FrozenEncoder:
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"{path} needs onnxruntime; install it with: pip install 'cofal[onnx]'") from error
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no public base class
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path} is not an ONNX model that onnxruntime can run ({reason})") from error
    source = session.get_inputs()[0]
    if len(source.shape) != 4:
        raise UserError(f"{path} takes an input of shape {source.shape}; an image encoder must take four dimensions")
    wants_bytes = source.type == "tensor(uint8)"
    last = source.shape[1] not in (1, 3) and source.shape[3] in (1, 3)  # (b, h, w, c) rather than (b, c, h, w)
    height, width, channels = source.shape[1:] if last else (*source.shape[2:], source.shape[1])

    def encode(images: np.ndarray) -> np.ndarray:
        pixels = _fit(images_to_tensor(images), height, width, channels)
        if not wants_bytes:
            pixels = pixels.float().div_(255.0)
        if last:
            pixels = pixels.permute(0, 2, 3, 1)
        return session.run(None, {source.name: pixels.contiguous().numpy()})[0]

    return encode


def _fit(pixels: Tensor, height: object, width: object, channels: object) -> Tensor:
    """uint8 (b, c, h, w) brought to the sizes that a model fixes; a size that is not a number is free."""
    if channels == 3 and pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)
    size = (
        height if isinstance(height, int) else pixels.shape[2],
        width if isinstance(width, int) else pixels.shape[3],
    )
    if tuple(pixels.shape[2:]) == size:
        return pixels
    resized = F.interpolate(pixels.float(), size, mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def _callable(spec: str) -> FrozenEncoder:
    module_name, _, attribute = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"cannot import {module_name!r} for encoder {spec} ({error}); is it installed?") from error
    encode = getattr(module, attribute, None)
    if not callable(encode):
        raise UserError(f"module {module_name} has no callable {attribute!r} for encoder {spec}; check the name")
    return encode
