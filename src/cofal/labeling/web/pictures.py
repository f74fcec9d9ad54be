"""Pictures for the page: pixels as PNG, by opaque keys. A key is no path, and opens only what was asked."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import lru_cache

from PIL import Image

from cofal.data.imageset import ImageSet
from cofal.errors import UserError

_KEPT = 64  # encoded pictures in memory


class Pictures:
    """The images of one site. `may_show(sample)` decides which of them the page may have at all."""

    def __init__(self, images: ImageSet, key_of: Callable[[str], str], may_show: Callable[[str], bool]):
        self._images, self.key, self._may_show = images, key_of, may_show
        self._row = {key_of(sample): row for row, sample in enumerate(images.ids)}
        self._encode = lru_cache(maxsize=_KEPT)(self._png)

    def sample(self, key: str) -> str:
        """The id that `key` stands for; a key of no image, or of one that was never asked, is refused alike."""
        row = self._row.get(key)
        if row is None or not self._may_show(self._images.ids[row]):
            raise UserError("no such image on this page; go back to the list and choose one there")
        return self._images.ids[row]

    def png(self, key: str) -> bytes:
        self.sample(key)
        return self._encode(self._row[key])

    def _png(self, row: int) -> bytes:
        pixels = self._images.images[row]  # (h, w, c) uint8
        file = io.BytesIO()
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        image.save(file, "PNG", compress_level=1)  # the way is short: quick to make beats small
        return file.getvalue()
