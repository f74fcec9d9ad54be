"""Pictures for the page: pixels as PNG, by opaque keys. A key is no path, and opens only what was asked."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from cofal.data.imageset import ImageSet
from cofal.data.listing import Encoded
from cofal.data.picture import BadImage, decode
from cofal.errors import UserError

_KEPT = 64  # encoded pictures in memory
_KEPT_LARGE = 8
_LARGEST = 2048  # pixels of the longer side that a screen can show


class Pictures:
    """The images of one site. `may_show(sample)` decides which of them the page may have at all."""

    def __init__(
        self,
        images: ImageSet,
        key_of: Callable[[str], str],
        may_show: Callable[[str], bool],
        originals: Path | None = None,
    ):
        """originals: the folder the images were decoded from (ids are paths below it), for pictures in full size."""
        self._images, self.key, self._may_show, self._originals = images, key_of, may_show, originals
        self._row = {key_of(sample): row for row, sample in enumerate(images.ids)}
        self._small = lru_cache(maxsize=_KEPT)(lambda row: _png(images.images[row]))
        self._large = lru_cache(maxsize=_KEPT_LARGE)(self._full_png)

    def sample(self, key: str) -> str:
        """The id that `key` stands for; a key of no image, or of one that was never asked, is refused alike."""
        row = self._row.get(key)
        if row is None or not self._may_show(self._images.ids[row]):
            raise UserError("no such image on this page; go back to the list and choose one there")
        return self._images.ids[row]

    def png(self, key: str) -> bytes:
        """The picture as networks see it, scaled and cropped."""
        self.sample(key)
        return self._small(self._row[key])

    def full_png(self, key: str) -> bytes:
        """The picture as it was before it was scaled for networks, if the original can be read; else as they see it."""
        self.sample(key)
        return self._large(self._row[key])

    def _full_png(self, row: int) -> bytes:
        original = self._original(self._images.ids[row])
        return self._small(row) if original is None else _png(original)

    def _original(self, sample: str) -> np.ndarray | None:
        path = Path(sample)
        if self._originals is None or path.is_absolute() or ".." in path.parts:
            return None
        try:
            return decode(Encoded(sample, self._originals / path), None)
        except BadImage:  # also a file that is gone
            return None


def _png(pixels: np.ndarray) -> bytes:
    """(h, w, 1 or 3) uint8 as a PNG file."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((_LARGEST, _LARGEST))
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)  # the way is short: quick to make beats small
    return file.getvalue()
