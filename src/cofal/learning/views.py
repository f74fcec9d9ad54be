"""Random views of image batches: the pairs a contrastive loss compares, and light augmentation for supervised training.

Parameters are drawn here, on the CPU, from the given generator (kornia's own augmentation classes draw from the global
one, which is never touched); kornia's functions apply them to the whole batch. A view is one resampling: crop, mirror
and deformation are composed into one map before any pixel is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from kornia.color import rgb_to_yuv, yuv_to_rgb
from kornia.filters import gaussian_blur2d
from kornia.geometry import create_meshgrid, get_affine_matrix2d, remap, transform_points, warp_affine
from torch import Tensor

from cofal.errors import UserError
from cofal.learning.encoders import pixels_to_float

Augment = Callable[[Tensor, torch.Generator], Tensor]
Views = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]

BLUR_FROM = 64  # pixels a side: below that, blur destroys what little detail there is


def _uniform(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator).mul_(high - low).add_(low)


def _happens(probability: float, count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator) < probability


# ---- geometry: affine maps (count, 3, 3) from the pixels of the image to the pixels of the view ----------------------


def _windows(left: Tensor, top: Tensor, width: Tensor, height: Tensor, mirror: Tensor, size: int) -> Tensor:
    """The maps of windows (in pixels of the image, edges not centres) onto size x size views, some mirrored."""
    maps = torch.zeros(len(left), 3, 3)
    for axis, (start, extent) in enumerate([(left, width), (top, height)]):
        scale = size / extent
        maps[:, axis, axis] = scale
        maps[:, axis, 2] = (0.5 - start) * scale - 0.5  # pixel centres lie half a pixel from the edge
    maps[mirror, 0] *= -1
    maps[mirror, 0, 2] += size - 1
    maps[:, 2, 2] = 1.0
    return maps


def _resized_crop(images: Tensor, smallest: float, size: int, generator: torch.Generator) -> Tensor:
    """Windows of `smallest` to 1 of the area, side ratio 3/4 to 4/3, half of them mirrored."""
    count, _, h, w = images.shape
    area = _uniform(smallest, 1.0, (count,), generator)
    ratio = torch.exp(_uniform(math.log(3 / 4), math.log(4 / 3), (count,), generator))
    width = (area * ratio).sqrt_().clamp_(max=1.0)
    height = (area / ratio).sqrt_().clamp_(max=1.0)
    left, top = torch.rand((2, count), generator=generator) * (1.0 - torch.stack([width, height]))
    return _windows(left * w, top * h, width * w, height * h, _happens(0.5, count, generator), size)


def _shifted(images: Tensor, shift: float, size: int, generator: torch.Generator) -> Tensor:
    """The whole image, shifted by up to `shift` of the side, half of them mirrored."""
    count, _, h, w = images.shape
    left, top = _uniform(-shift, shift, (2, count), generator)
    whole = torch.ones(count)
    return _windows(left * w, top * h, whole * w, whole * h, _happens(0.5, count, generator), size)


def _small_affine(
    images: Tensor, size: int, degrees: float, shift: float, scale: float, shear: float, generator: torch.Generator
) -> Tensor:
    """Maps close to the identity; `shift` in parts of the side, `scale` and `shear` (radians) relative."""
    count, _, h, w = images.shape
    angle = _uniform(-degrees, degrees, (count,), generator)
    zoom = torch.exp(_uniform(-math.log1p(scale), math.log1p(scale), (count, 2), generator))
    slant = _uniform(-shear, shear, (count,), generator)
    moved = _uniform(-shift * size, shift * size, (count, 2), generator)
    centre = torch.full((count, 2), (size - 1) / 2)
    around = get_affine_matrix2d(moved, centre, zoom, angle, slant, torch.zeros(count))
    if (h, w) == (size, size):
        return around
    origin, whole = torch.zeros(count), torch.ones(count)
    return around @ _windows(origin, origin, whole * w, whole * h, torch.zeros(count, dtype=torch.bool), size)


def _warp(images: Tensor, maps: Tensor, size: int, padding: str) -> Tensor:
    return warp_affine(images, maps[:, :2].to(images.device), (size, size), padding_mode=padding)


def _elastic_warp(
    images: Tensor, maps: Tensor, size: int, knots: int, strength: float, generator: torch.Generator
) -> Tensor:
    """The affine maps together with smooth random displacements, `strength` of the side at the knots."""
    field = torch.randn(len(images), 2, knots, knots, generator=generator).mul_(strength * size)
    field = F.interpolate(field, (size, size), mode="bilinear", align_corners=True)
    points = create_meshgrid(size, size, normalized_coordinates=False).reshape(1, size * size, 2)
    points = points + field.flatten(2).transpose(1, 2)
    x, y = transform_points(torch.linalg.inv(maps), points).view(-1, size, size, 2).to(images.device).unbind(-1)
    return remap(images, x, y, padding_mode="zeros", align_corners=True)


# ---- colour ---------------------------------------------------------------------------------------------------------


def _colour(images: Tensor, strength: float, jitter: float, grey: float, generator: torch.Generator) -> Tensor:
    """Brightness, contrast, saturation and hue of some of the images, and some made grey; clipped to [0, 1].

    Hue is a rotation of the chroma plane, not of the HSV wheel: all four changes are then linear in YUV, and cost two
    conversions (kornia's hue shift by way of HSV takes longer than all else together).
    """
    b = len(images)
    on = _happens(jitter, b, generator).float()
    brightness, contrast, saturation = 1.0 + on * _uniform(-strength, strength, (3, b), generator)
    angle = on * _uniform(-math.pi * strength / 2, math.pi * strength / 2, (b,), generator)
    saturation = torch.where(_happens(grey, b, generator), torch.zeros(b), saturation)
    gain = brightness * contrast
    cos, sin = torch.cos(angle) * saturation * gain, torch.sin(angle) * saturation * gain
    gain, lift, cos, sin = (
        each[:, None, None, None].to(images.device) for each in (gain, brightness * (1.0 - contrast), cos, sin)
    )
    y, u, v = rgb_to_yuv(images).split(1, dim=1)
    y = y * gain + y.mean(dim=(2, 3), keepdim=True) * lift
    return yuv_to_rgb(torch.cat([y, u * cos - v * sin, u * sin + v * cos], dim=1)).clamp_(0.0, 1.0)


def _brightness_contrast(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Brightness and contrast for images of any number of channels."""
    gain, contrast = (1.0 + _uniform(-strength, strength, (2, len(images), 1, 1, 1), generator)).to(images.device)
    level = images.mean(dim=(1, 2, 3), keepdim=True)
    return ((images - level) * contrast + level).mul_(gain).clamp_(0.0, 1.0)


def _blur(images: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Gaussian blur of some of the images, standard deviation 0.1 to 2 pixels at 224 (in proportion elsewhere)."""
    b, _, h, w = images.shape
    sigma = _uniform(0.1, 2.0, (b, 1), generator).mul_(h / 224)
    some = _happens(probability, b, generator)
    if not some.any():
        return images
    side = min(2 * max(1, round(3 * 2.0 * h / 224)) + 1, h - 1 + h % 2, w - 1 + w % 2)
    blurred = images.clone()
    blurred[some] = gaussian_blur2d(images[some], (side, side), sigma[some].expand(-1, 2).to(images.device))
    return blurred


# ---- the named recipes ----------------------------------------------------------------------------------------------


def _natural(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    x = _warp(images, _resized_crop(images, 0.2, size, generator), size, "border")
    x = _colour(x, 0.4, 0.8, 0.2, generator) if x.shape[1] == 3 else _brightness_contrast(x, 0.4, generator)
    return _blur(x, 0.5, generator) if size >= BLUR_FROM else x


def _glyph(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    maps = _small_affine(images, size, 15.0, 0.1, 0.2, 0.2, generator)
    x = _elastic_warp(images, maps, size, 4, 0.03, generator)
    return _brightness_contrast(x, 0.3, generator)


def _natural_light(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    return _warp(images, _shifted(images, 0.125, size, generator), size, "zeros")


def _glyph_light(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    return _warp(images, _small_affine(images, size, 10.0, 0.06, 0.1, 0.1, generator), size, "zeros")


_RECIPES = {"natural": (_natural, _natural_light), "glyph": (_glyph, _glyph_light)}


def _recipes(name: str, image_size: int, channels: int) -> tuple[Callable, Callable]:
    if name not in _RECIPES:
        raise UserError(f"unknown views {name!r}; choose one of {', '.join(_RECIPES)}")
    if image_size < 1 or channels not in (1, 3):
        raise UserError(f"views need a positive image size and 1 or 3 channels, not {image_size} and {channels}")
    return _RECIPES[name]


def make_views(name: str, image_size: int, channels: int) -> Views:
    """Two independent random views of each image.

    The result maps (images (b, c, h, w) uint8 or float in [0, 1], generator) to two float tensors
    (b, c, image_size, image_size) in [0, 1]. `natural` suits photographs (resized crop, mirror, colour; blur from 64
    pixels); `glyph` suits characters and other centred shapes, which a mirror would turn into something else.
    """
    recipe, _ = _recipes(name, image_size, channels)

    def views(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = pixels_to_float(images)
        first, second = recipe(torch.cat([x, x]), image_size, generator).chunk(2)
        return first, second

    return views


def make_augmentation(name: str, image_size: int, channels: int) -> Augment:
    """One lightly changed copy of each image (small shifts; mirrored for `natural`), for supervised training."""
    _, recipe = _recipes(name, image_size, channels)
    return lambda images, generator: recipe(pixels_to_float(images), image_size, generator)
