"""One ONNX model from encoder and head: raw images in, class probabilities out."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cofal.errors import UserError
from cofal.files import atomic
from cofal.learning.encoders import ResNet
from cofal.learning.head import Head


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks on its own internals (absent torchvision, deprecations) off the user's terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class _Pipeline(nn.Module):
    """uint8 images (b, h, w, c) to probabilities (b, classes), through the unit embedding the head was trained on."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, images: Tensor) -> Tensor:
        features = self.encoder(images.permute(0, 3, 1, 2).to(torch.float32) / 255.0)
        return torch.softmax(self.head(F.normalize(features, dim=1)), dim=1)


def export_onnx(
    encoder: ResNet, head: Head, classes: Sequence[str], path: Path | str, image_size: int | None = None
) -> None:
    """Write `path`: input `images` uint8 (batch, image_size, image_size, channels), output `probabilities`.

    `image_size` defaults to the encoder's own, which one loaded from a file knows.
    The names of the classes, in the order of the columns, are in the model's metadata under `classes` (JSON).
    """
    try:
        import onnx
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise UserError("ONNX export needs more packages; install them with: pip install 'cofal[onnx]'") from error
    if len(classes) != head.classes:
        raise UserError(f"the head has {head.classes} classes, but {len(classes)} names were given")
    size = image_size or encoder.image_size
    if size is None:
        raise UserError("ONNX export needs the image size; give image_size or an encoder loaded from a file")
    pipeline = _Pipeline(encoder, head).cpu().eval()
    example = torch.zeros(2, size, size, encoder.channels, dtype=torch.uint8)
    with _quiet():
        program = torch.onnx.export(
            pipeline,
            (example,),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # None only when torch writes the file itself
    model = program.model_proto
    onnx.helper.set_model_props(model, {"classes": json.dumps(list(classes)), "encoder": encoder.name})
    with atomic(path) as temporary:
        onnx.save_model(model, str(temporary))
