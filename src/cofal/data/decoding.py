"""The stream from encoded images to the growing .npy file: threads, bounded memory, the fate of broken images."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from PIL import Image

from cofal.data.choosing import Choice
from cofal.data.listing import Block, Encoded
from cofal.data.npyfile import NpyWriter
from cofal.data.picture import BadImage, decode, resize
from cofal.data.settings import DataSettings
from cofal.errors import UserError

_CHUNK_BYTES = 1 << 20  # decoded bytes a thread works on at a time
_CHUNK_IMAGES = 64


@dataclass(frozen=True)
class FirstImage:
    """The image whose height and width all others must have."""

    id: str
    size: tuple[int, int]


def decode_into(
    writer: NpyWriter,
    choice: Choice,
    settings: DataSettings,
    first: FirstImage | None,
    advance: Callable[[int], None],
) -> tuple[np.ndarray, FirstImage | None]:
    """Append the chosen images to `writer`; returns the rows that could be read and the first image."""
    good: list[int] = []
    position = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # bombs are refused by decode(), odd metadata does no harm
        for images in _decoded(choice.listing.blocks(choice.rows), settings.image_size):
            arrived = choice.rows[position : position + len(images)]
            position += len(images)
            for row, image in zip(arrived, images):
                if isinstance(image, BadImage):
                    if not settings.skip_bad:
                        raise UserError(f"{image}; repair or remove it, or set skip_bad = true")
                    continue
                first = first or FirstImage(choice.listing.ids[row], image.shape[:2])
                if image.shape[:2] != first.size:
                    raise UserError(
                        f"images differ in size ({first.id} has {_text(first.size)}, {choice.listing.ids[row]} has "
                        f"{_text(image.shape[:2])} pixels); set image_size, such as image_size = {min(first.size)}"
                    )
                good.append(int(row))
            readable = [image for image in images if not isinstance(image, BadImage)]
            if readable:
                writer.append(images if isinstance(images, np.ndarray) else _stack(readable))
            advance(len(images))
    return np.asarray(good, dtype=np.int64), first


def _decoded(blocks: Iterator[Block], size: int | None) -> Iterator[np.ndarray | list[np.ndarray | BadImage]]:
    """The images of all blocks in order; a few chunks are in work at a time, whatever the length of the blocks."""
    threads = min(8, os.cpu_count() or 1)
    waiting: deque[Future[list[np.ndarray | BadImage]]] = deque()
    step = 1  # until the first image tells how large they are

    def oldest() -> list[np.ndarray | BadImage]:
        nonlocal step
        images = waiting.popleft().result()
        bytes_each = max((image.nbytes for image in images if isinstance(image, np.ndarray)), default=0)
        step = min(_CHUNK_IMAGES, max(1, _CHUNK_BYTES // bytes_each)) if bytes_each else step
        return images

    Image.init()  # here, because Pillow loads its decoders at first use, and not in a way made for threads
    with ThreadPoolExecutor(threads) as pool:
        try:
            for block in blocks:
                if isinstance(block, np.ndarray) and (size is None or block.shape[1:3] == (size, size)):
                    yield block
                    continue
                begin = 0
                while begin < len(block):
                    waiting.append(pool.submit(_work, block[begin : begin + step], size))
                    begin += step
                    if len(waiting) > 2 * threads:
                        yield oldest()
            while waiting:
                yield oldest()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _work(chunk: Block, size: int | None) -> list[np.ndarray | BadImage]:
    if isinstance(chunk, np.ndarray):
        assert size is not None
        return [resize(image, size) for image in chunk]
    return [_tried(encoded, size) for encoded in chunk]


def _tried(encoded: Encoded, size: int | None) -> np.ndarray | BadImage:
    try:
        return decode(encoded, size)
    except BadImage as bad:
        return bad


def _stack(images: list[np.ndarray]) -> np.ndarray:
    channels = max(image.shape[2] for image in images)
    return np.stack([image if image.shape[2] == channels else np.repeat(image, channels, axis=2) for image in images])


def _text(size: tuple[int, int]) -> str:
    return f"{size[1]} x {size[0]}"
