"""One encoded image to a uint8 array: which file formats and pixel modes are taken, how they become grey or colour."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from cofal.data.listing import Encoded, reason

# Only decoders that read pixels; Pillow's full list includes some that start other programs.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")


class BadImage(Exception):
    """An image that cannot be read; the text says which and why."""


def decode(encoded: Encoded, size: int | None) -> np.ndarray:
    """(h, w, c) uint8, c = 1 for grey and 3 for colour; `size` makes it (size, size, c)."""
    try:
        content = encoded.content
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content, formats=FORMATS) as image:
            limit = Image.MAX_IMAGE_PIXELS or 0
            if limit and image.width * image.height > limit:
                raise BadImage(
                    f"{image.width} x {image.height} pixels are more than the {limit} that are taken for safe"
                )
            if size is not None and image.format == "JPEG":
                image.draft(None, (2 * size, 2 * size))  # libjpeg skips detail that the scaling would throw away
            upright = ImageOps.exif_transpose(image) if "exif" in image.info else image
            return _pixels(_scaled(_eight_bit(upright), size))
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on a broken file
        why = "not an image in a known format" if isinstance(error, UnidentifiedImageError) else reason(error)
        raise BadImage(f"{encoded.name}: {why}") from error


def resize(image: np.ndarray, size: int) -> np.ndarray:
    """(h, w, c) uint8 scaled and cropped to (size, size, c)."""
    return _pixels(_scaled(Image.fromarray(image[..., 0] if image.shape[2] == 1 else image), size))


def _eight_bit(image: Image.Image) -> Image.Image:
    """The image as L or RGB: 16 bits keep the high byte, transparency goes on white, palettes and CMYK to colour."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise BadImage(f"pixel values from {values.min()} to {values.max()}; 8 or 16 bits are taken")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        raise BadImage("floating-point pixels; save it with 8 or 16 bits")
    if image.has_transparency_data:
        grey = image.mode in ("LA", "La")
        clear = image.convert("RGBA")
        on_white = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
        return on_white.convert("L" if grey else "RGB")
    return image.convert("RGB")


def _scaled(image: Image.Image, size: int | None) -> Image.Image:
    if size is None or image.size == (size, size):
        return image
    return ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)


def _pixels(image: Image.Image) -> np.ndarray:
    array = np.asarray(image)
    return array[..., None] if array.ndim == 2 else array
