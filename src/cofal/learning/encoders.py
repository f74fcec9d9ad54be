"""The image encoders, by name: residual networks that take raw pixels and return one feature vector an image.

Normalisation of the pixels is part of the encoder, so that an encoder file needs nothing else to be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cofal.errors import UserError

# Fixed for every data set: statistics of the sites' pixels would be one more thing to share, and the BatchNorm behind
# the first convolution removes any remaining shift and scale.
PIXEL_MEAN = 0.5
PIXEL_STD = 0.25


def pixels_to_float(images: Tensor) -> Tensor:
    """uint8 pixels (0 to 255) as float32 in [0, 1]; floats are taken to be in [0, 1] already."""
    return images.to(torch.float32).div_(255.0) if images.dtype == torch.uint8 else images


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the first may halve the resolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu_(self.bn1(self.conv1(x)))
        return torch.relu_(self.bn2(self.conv2(y)).add_(self.shortcut(x)))


@dataclass(frozen=True)
class Stem:
    """The first layers: a convolution, and for large images a max-pool."""

    kernel: int
    stride: int
    pool: bool = False


class ResNet(nn.Module):
    """Images (b, c, h, w), uint8 or float in [0, 1], to features (b, feature_dim)."""

    def __init__(self, name: str, channels: int, stem: Stem, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        self.name = name
        self.channels = channels
        self.image_size: int | None = None  # known for an encoder that comes from a file
        self.pixel_mean, self.pixel_std = PIXEL_MEAN, PIXEL_STD
        self.feature_dim = widths[-1]
        layers: list[nn.Module] = [
            nn.Conv2d(channels, widths[0], stem.kernel, stem.stride, stem.kernel // 2, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(inplace=True),
        ]
        if stem.pool:
            layers.append(nn.MaxPool2d(3, 2, 1))
        self.stem = nn.Sequential(*layers)
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (width, depth) in enumerate(zip(widths, depths)):
            for position in range(depth):
                blocks.append(Block(inputs, width, stride=2 if stage > 0 and position == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)

    def forward(self, images: Tensor) -> Tensor:
        x = pixels_to_float(images).sub(self.pixel_mean).div_(self.pixel_std)
        x = x.contiguous(memory_format=torch.channels_last)  # as the weights are: about a fifth faster on a CPU
        return self.blocks(self.stem(x)).mean(dim=(2, 3))


def _resnet(name: str, stem: Stem, widths: tuple[int, ...], depths: tuple[int, ...]) -> Callable[[int], ResNet]:
    return lambda channels: ResNet(name, channels, stem, widths, depths)


RESNET18 = ((64, 128, 256, 512), (2, 2, 2, 2))
ENCODERS: dict[str, Callable[[int], ResNet]] = {
    "resnet18": _resnet("resnet18", Stem(3, 1), *RESNET18),
    "resnet18-imagenet": _resnet("resnet18-imagenet", Stem(7, 2, pool=True), *RESNET18),
    "resnet-small": _resnet("resnet-small", Stem(3, 2), (32, 64, 128, 256), (1, 1, 1, 1)),
    "resnet-tiny": _resnet("resnet-tiny", Stem(3, 1), (32, 64), (1, 1)),
}


def initialise(module: nn.Module, generator: torch.Generator | None) -> None:
    """Fill every parameter and buffer of a module built on the meta device, drawing from `generator` alone.

    Without a generator they are left as memory happens to be, for weights that are loaded next.
    """
    for part in module.modules():
        _allocate(part)
        if generator is not None:
            _draw(part, generator)


def _allocate(part: nn.Module) -> None:
    """Memory for a module's own tensors; PyTorch's `to_empty` does the same, but loads sympy for it: half a second."""
    for name, parameter in part.named_parameters(recurse=False):
        setattr(part, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
    for name, buffer in part.named_buffers(recurse=False):
        setattr(part, name, torch.empty(buffer.shape, dtype=buffer.dtype))
    if isinstance(part, nn.Conv2d):
        part.weight.data = part.weight.data.contiguous(memory_format=torch.channels_last)


def _draw(part: nn.Module, generator: torch.Generator) -> None:
    if isinstance(part, nn.Conv2d):
        nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu", generator=generator)
    elif isinstance(part, nn.Linear):
        bound = part.in_features**-0.5
        nn.init.uniform_(part.weight, -bound, bound, generator=generator)
        if part.bias is not None:
            nn.init.zeros_(part.bias)
    elif isinstance(part, nn.modules.batchnorm._BatchNorm):
        part.reset_parameters()  # ones and zeros: draws nothing


def build_encoder(name: str, channels: int, generator: torch.Generator | None) -> ResNet:
    """The encoder called `name` for images of `channels` channels; for its weights see `initialise`."""
    if name not in ENCODERS:
        raise UserError(f"unknown encoder {name!r}; choose one of {', '.join(ENCODERS)}")
    if channels not in (1, 3):
        raise UserError(f"an encoder takes images of 1 or 3 channels, not {channels}")
    with torch.device("meta"):  # the layers' own initialisation would draw from the global generator
        encoder = ENCODERS[name](channels)
    initialise(encoder, generator)
    return encoder
