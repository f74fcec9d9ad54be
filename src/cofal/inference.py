"""A run's finished classifier on new images: load it, read the images, predict, export."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cofal.config import parse
from cofal.data.listing import Encoded
from cofal.data.picture import BadImage, decode
from cofal.errors import UserError
from cofal.federation import models
from cofal.files import read_json
from cofal.learning.classifier import classify
from cofal.learning.embed import embed
from cofal.learning.frozen import load_frozen
from cofal.learning.head import predict_proba
from cofal.learning.state import load_arrays, load_encoder
from cofal.rundir import RunDir

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm"}
_BATCH = 256


@dataclass(frozen=True)
class Predictor:
    """The classifier of one track and the encoder under it."""

    track: str
    classes: list[str]
    image_size: int
    channels: int
    model: Any  # a head on embeddings, or an image network
    encoder: Any  # None for an image network

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        """(n, classes) float32 for images (n, h, w, c) uint8."""
        return (
            classify(self.model, images)
            if self.encoder is None
            else predict_proba(self.model, embed(self.encoder, images))
        )


def load_predictor(folder: Path, track: str = "") -> Predictor:
    """The classifier of `track` in a run; without a name, of the track that was best at the largest budget."""
    run = RunDir(folder)
    if not run.results.exists():
        raise UserError(f"{folder} holds no finished run; run it to its end first")
    results = read_json(run.results)
    last = max(cell["budget"] for cell in results)
    finals = {cell["track"]: cell["accuracy"] for cell in results if cell["budget"] == last}
    track = track or max(finals, key=lambda name: finals[name])
    if track not in finals:
        raise UserError(f"{folder} has no track {track!r}; it has {', '.join(finals)}")
    config = parse(tomllib.loads(run.config.read_text(encoding="utf-8")), str(run.config))
    arrays, metadata = load_arrays(run.model(track))
    description = json.loads(metadata["description"])
    encoder = None
    if description["kind"] == "head":
        encoder = load_frozen(config.encoder.frozen) if config.encoder.frozen else load_encoder(run.encoder)
    height, _, channels = json.loads(metadata["image_shape"])
    return Predictor(
        track, json.loads(metadata["classes"]), height, channels, models.rebuild(description, arrays), encoder
    )


def read_images(sources: list[Path], predictor: Predictor) -> Iterator[tuple[list[str], np.ndarray]]:
    """Names and images (b, h, w, c) uint8, a batch at a time, from image files, folders of them, and .npy arrays."""
    stream = itertools.chain.from_iterable(_images(source, predictor) for source in sources)
    while batch := list(itertools.islice(stream, _BATCH)):
        yield [name for name, _ in batch], np.stack([image for _, image in batch])


def _images(source: Path, predictor: Predictor) -> Iterator[tuple[str, np.ndarray]]:
    if source.suffix == ".npy":
        return _from_array(source, predictor)
    return ((str(file), _from_file(file, predictor)) for file in _files(source))


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        found = sorted(
            file for file in source.rglob("*") if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
        )
        if not found:
            raise UserError(f"{source} holds no images; known endings: {', '.join(sorted(_SUFFIXES))}")
        return found
    if not source.is_file():
        raise UserError(f"no image at {source}; give image files, folders or .npy arrays")
    return [source]


def _from_file(file: Path, predictor: Predictor) -> np.ndarray:
    try:
        return _channels(decode(Encoded(str(file), file), predictor.image_size), predictor.channels)
    except BadImage as bad:
        raise UserError(f"cannot read image {bad}") from None


def _from_array(file: Path, predictor: Predictor) -> Iterator[tuple[str, np.ndarray]]:
    try:
        images = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file}: {error}") from None
    images = images[..., None] if images.ndim == 3 else images
    size = predictor.image_size
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1:3] != (size, size):
        raise UserError(
            f"{file} holds {images.shape} {images.dtype}; "
            f"this model takes uint8 (n, {size}, {size}, {predictor.channels})"
        )
    for row, image in enumerate(images):
        yield f"{file}:{row}", _channels(np.asarray(image), predictor.channels)


def _channels(image: np.ndarray, channels: int) -> np.ndarray:
    """Grey to colour by repeating, colour to grey by the usual luma weights."""
    if image.shape[2] == channels:
        return image
    if channels == 3:
        return np.repeat(image, 3, axis=2)
    return np.rint(image @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)[..., None]
