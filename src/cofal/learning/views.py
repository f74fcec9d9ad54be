"""Random views of image batches: the pairs a contrastive loss compares, and light augmentation for supervised training.

Every view is one resampling (crop, flip, affine or elastic deformation folded into one grid) and one colour map
(brightness, contrast, saturation, hue and grey folded into one 3x4 matrix an image), for the whole batch at once.
All parameters are drawn on the CPU from the given generator; the global generator is never touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cofal.errors import UserError
from cofal.learning.encoders import pixels_to_float

Augment = Callable[[Tensor, torch.Generator], Tensor]
Views = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]

BLUR_FROM = 64  # pixels a side: below that, blur destroys what little detail there is
_GREY = torch.tensor([0.299, 0.587, 0.114])
_TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_FROM_YIQ = torch.linalg.inv(_TO_YIQ.double()).float()


def _uniform(low: float, high: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator).mul_(high - low).add_(low)


def _happens(probability: float, count: int, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator) < probability


# ---- geometry -------------------------------------------------------------------------------------------------------


def _resized_crop(count: int, smallest: float, generator: torch.Generator) -> Tensor:
    """Affine maps (count, 2, 3) to a window of `smallest` to 1 of the area, ratio 3/4 to 4/3, half of them mirrored."""
    area = _uniform(smallest, 1.0, (count,), generator)
    ratio = torch.exp(_uniform(math.log(3 / 4), math.log(4 / 3), (count,), generator))
    width = (area * ratio).sqrt_().clamp_(max=1.0)
    height = (area / ratio).sqrt_().clamp_(max=1.0)
    centre = _uniform(-1.0, 1.0, (2, count), generator)
    mirror = 1.0 - 2.0 * _happens(0.5, count, generator).float()
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0] = width * mirror
    theta[:, 1, 1] = height
    theta[:, 0, 2] = centre[0] * (1.0 - width)
    theta[:, 1, 2] = centre[1] * (1.0 - height)
    return theta


def _padded_crop(count: int, shift: float, generator: torch.Generator) -> Tensor:
    """Affine maps that shift by up to `shift` of the side, half of them mirrored."""
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0] = 1.0 - 2.0 * _happens(0.5, count, generator).float()
    theta[:, 1, 1] = 1.0
    theta[:, :, 2] = _uniform(-2 * shift, 2 * shift, (count, 2), generator)
    return theta


def _small_affine(
    count: int, degrees: float, shift: float, scale: float, shear: float, generator: torch.Generator
) -> Tensor:
    """Affine maps close to the identity; `shift` in parts of the side, `scale` and `shear` relative."""
    angle = _uniform(-math.radians(degrees), math.radians(degrees), (count,), generator)
    zoom = torch.exp(_uniform(-math.log1p(scale), math.log1p(scale), (2, count), generator))
    slant = _uniform(-shear, shear, (count,), generator)
    cos, sin = torch.cos(angle), torch.sin(angle)
    theta = torch.empty(count, 2, 3)
    theta[:, 0, 0] = cos * zoom[0]
    theta[:, 0, 1] = (slant * cos - sin) * zoom[0]
    theta[:, 1, 0] = sin * zoom[1]
    theta[:, 1, 1] = (slant * sin + cos) * zoom[1]
    theta[:, :, 2] = _uniform(-2 * shift, 2 * shift, (count, 2), generator)
    return theta


def _elastic(count: int, size: int, knots: int, strength: float, generator: torch.Generator) -> Tensor:
    """Smooth random displacements (count, size, size, 2), `strength` of the side at the knots, zero on average."""
    field = torch.randn(count, 2, knots, knots, generator=generator).mul_(2 * strength)
    return F.interpolate(field, (size, size), mode="bilinear", align_corners=True).permute(0, 2, 3, 1)


def _resample(images: Tensor, theta: Tensor, size: int, padding: str, displacement: Tensor | None = None) -> Tensor:
    grid = F.affine_grid(theta, [len(images), images.shape[1], size, size], align_corners=False)
    if displacement is not None:
        grid = grid + displacement
    return F.grid_sample(images, grid.to(images.device), mode="bilinear", padding_mode=padding, align_corners=False)


# ---- colour ---------------------------------------------------------------------------------------------------------


def _colour_maps(
    count: int, strength: float, jitter: float, grey: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Linear maps (count, 3, 3) for brightness, saturation, hue and grey, and contrast factors (count,).

    Hue is a rotation of the chroma plane (YIQ), which makes the whole jitter linear and its cost one small product.
    """
    on = _happens(jitter, count, generator).float()
    brightness, contrast, saturation = 1.0 + on * _uniform(-strength, strength, (3, count), generator)
    angle = on * _uniform(-math.pi * strength / 2, math.pi * strength / 2, (count,), generator)
    saturation = torch.where(_happens(grey, count, generator), torch.zeros(count), saturation)
    chroma = torch.zeros(count, 3, 3)
    chroma[:, 0, 0] = 1.0
    chroma[:, 1, 1] = chroma[:, 2, 2] = torch.cos(angle) * saturation
    chroma[:, 1, 2] = -torch.sin(angle) * saturation
    chroma[:, 2, 1] = torch.sin(angle) * saturation
    return (_FROM_YIQ @ chroma @ _TO_YIQ) * brightness[:, None, None], contrast


def _colour(images: Tensor, maps: Tensor, contrast: Tensor) -> Tensor:
    """Apply the maps to (b, 3, h, w), contrast about each image's mean grey, and clip to [0, 1]."""
    b, c, h, w = images.shape
    flat = images.reshape(b, c, h * w)
    maps, contrast = maps.to(images.device), contrast.to(images.device)
    level = (maps @ flat.mean(dim=2, keepdim=True)).mul(_GREY.to(images.device)[:, None]).sum(1, keepdim=True)
    offset = (level * (1.0 - contrast[:, None, None])).expand(b, c, 1)
    return torch.baddbmm(offset, maps * contrast[:, None, None], flat).clamp_(0.0, 1.0).view(b, c, h, w)


def _brightness_contrast(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Brightness and contrast for images of any number of channels."""
    gain, contrast = (1.0 + _uniform(-strength, strength, (2, len(images), 1, 1, 1), generator)).to(images.device)
    level = images.mean(dim=(1, 2, 3), keepdim=True)
    return ((images - level) * contrast + level).mul_(gain).clamp_(0.0, 1.0)


def _blur(images: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Gaussian blur of some of the images, standard deviation 0.1 to 2 pixels at 224 (in proportion elsewhere)."""
    b, c, h, _ = images.shape
    sigma = _uniform(0.1, 2.0, (b, 1), generator).mul_(h / 224)
    radius = max(1, round(3 * 2.0 * h / 224))
    offsets = torch.arange(-radius, radius + 1)
    kernel = torch.softmax(-(offsets**2) / (2 * sigma**2), dim=1)
    off = ~_happens(probability, b, generator)
    kernel[off] = (offsets == 0).float()
    kernel = kernel.to(images.device).repeat_interleave(c, 0)  # one kernel a channel of each image
    x = F.pad(images.reshape(1, b * c, *images.shape[2:]), (radius,) * 4, mode="replicate")
    x = F.conv2d(x, kernel[:, None, None, :], groups=b * c)
    return F.conv2d(x, kernel[:, None, :, None], groups=b * c).view(images.shape)


# ---- the named recipes ----------------------------------------------------------------------------------------------


def _natural(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    b = len(images)
    x = _resample(images, _resized_crop(b, 0.2, generator), size, "border")
    if x.shape[1] == 3:
        x = _colour(x, *_colour_maps(b, 0.4, 0.8, 0.2, generator))
    else:
        x = _brightness_contrast(x, 0.4, generator)
    return _blur(x, 0.5, generator) if size >= BLUR_FROM else x


def _glyph(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    b = len(images)
    theta = _small_affine(b, 15.0, 0.1, 0.2, 0.2, generator)
    x = _resample(images, theta, size, "zeros", _elastic(b, size, 4, 0.03, generator))
    return _brightness_contrast(x, 0.3, generator)


def _natural_light(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    return _resample(images, _padded_crop(len(images), 0.125, generator), size, "zeros")


def _glyph_light(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    return _resample(images, _small_affine(len(images), 10.0, 0.06, 0.1, 0.1, generator), size, "zeros")


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
