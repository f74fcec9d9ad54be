"""Pictures from embeddings: a decoder trained on the attacker's own images, and how near its pictures come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cofal.learning.batches import images_to_tensor, shuffled_batches
from cofal.learning.classifier import Classifier, build_classifier, classify, train_classifier
from cofal.learning.encoders import initialise
from cofal.learning.views import make_augmentation
from cofal.rng import torch_generator

LARGEST = 64  # pixels of a side up to which pictures are rebuilt; larger images are scaled down first
_WIDTH = 128  # channels at the coarsest resolution
_BATCH = 64


class Decoder(nn.Module):
    """Embeddings (b, d) to images (b, c, side, side) in [0, 1]: a linear layer, then convolutions and doublings."""

    def __init__(self, d: int, channels: int, side: int) -> None:
        super().__init__()
        self.side, doublings = side, 0
        while side / 2**doublings > 7:
            doublings += 1
        self.start = -(-side // 2**doublings)
        self.spread = nn.Linear(d, _WIDTH * self.start**2)
        layers: list[nn.Module] = []
        width = _WIDTH
        for _ in range(doublings + 1):
            narrower = max(width // 2, 16)
            layers += [nn.Conv2d(width, narrower, 3, 1, 1, bias=False), nn.BatchNorm2d(narrower), nn.ReLU()]
            width = narrower
            if len(layers) < 3 * (doublings + 1) + doublings:
                layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, 1, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        coarse = self.spread(x).view(len(x), _WIDTH, self.start, self.start)
        coarse = coarse.contiguous(memory_format=torch.channels_last)  # as the weights are
        side = self.side
        pictures: Tensor = torch.sigmoid(self.layers(coarse)[:, :, :side, :side])
        return pictures


def pixels(images: np.ndarray) -> np.ndarray:
    """(n, h, w, c) uint8 as (n, c, side, side) float32 in [0, 1]; square, and not larger than `LARGEST`."""
    tensor = images_to_tensor(images).float().div_(255.0)
    side = min(LARGEST, *tensor.shape[2:])
    if tuple(tensor.shape[2:]) != (side, side):
        tensor = F.interpolate(tensor, (side, side), mode="bilinear", antialias=True)
    array: np.ndarray = tensor.numpy()
    return array


class Forger:
    """An attacker who has images of the same kind and their embeddings, and learns to turn embeddings into images."""

    def __init__(self, pictures: np.ndarray, seed: int, d: int) -> None:
        """`pictures` (n, c, side, side) float32 are the attacker's own."""
        self.pictures, self._stream = pictures, torch_generator(seed, "attack", "decoder")
        with torch.device("meta"):
            self.decoder = Decoder(d, pictures.shape[1], pictures.shape[2])
        initialise(self.decoder, self._stream)

    def learn(self, inputs: np.ndarray, steps: int, lr: float = 2e-3) -> None:
        """Go on training on `inputs` (r, n, d): r versions of what would have been sent of each of the own images.

        An attacker who knows the noise trains on embeddings noised alike.
        """
        decoder, stream = self.decoder.train(), self._stream
        given, wanted = torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(self.pictures)
        stepper = torch.optim.AdamW(decoder.parameters(), lr=lr, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(stepper, lr, total_steps=steps + 1, pct_start=0.2)
        done = 0
        while done < steps:
            for chosen in shuffled_batches(len(wanted), _BATCH, 2, stream):
                version = torch.randint(len(given), (len(chosen),), generator=stream)
                rows = torch.from_numpy(chosen)
                loss = F.mse_loss(decoder(given[version, rows]), wanted[rows])
                stepper.zero_grad(set_to_none=True)
                loss.backward()
                stepper.step()
                schedule.step()
                done += 1
                if done == steps:
                    break

    def forge(self, sent: np.ndarray) -> np.ndarray:
        """(n, c, side, side) pictures for what was sent (n, d)."""
        self.decoder.eval()
        with torch.inference_mode():
            parts = [self.decoder(part) for part in torch.from_numpy(sent.astype(np.float32)).split(512)]
        array: np.ndarray = torch.cat(parts).numpy()
        return array


@dataclass(frozen=True)
class Likeness:
    """How near pictures are to the images behind them."""

    psnr: float  # dB, mean over the pictures
    ssim: float  # structural similarity, -1 to 1, mean over the pictures
    recognised: float  # share whose class a classifier of images still tells


class Judge:
    """A classifier of images, trained on the attacker's own: is what a picture shows still to be recognised?"""

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, classes: int, arch: str, views: str, steps: int, seed: int
    ) -> None:
        """images (n, h, w, c) uint8 with labels (n,) int64; `steps` of training with batches of 64."""
        stream = torch_generator(seed, "attack", "judge")
        side, channels = images.shape[1], images.shape[3]
        self.model: Classifier = build_classifier(arch, channels, classes, stream)
        self.side = side
        train_classifier(
            self.model,
            images,
            labels,
            epochs=max(1, round(steps * _BATCH / len(images))),
            batch_size=_BATCH,
            lr=3e-3,
            optimizer="adamw",
            momentum=0.9,
            weight_decay=1e-3,
            augment=make_augmentation(views, side, channels),
            generator=stream,
        )

    def accuracy(self, pictures: np.ndarray, labels: np.ndarray) -> float:
        """Share of pictures (n, c, side, side) in [0, 1] that are given their class."""
        given = torch.from_numpy(pictures)
        if given.shape[2] != self.side:
            given = F.interpolate(given, (self.side, self.side), mode="bilinear")
        images = given.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        return float((classify(self.model, images).argmax(1) == labels).mean())


def likeness(pictures: np.ndarray, originals: np.ndarray, labels: np.ndarray, judge: Judge) -> Likeness:
    """Compare pictures with originals, both (n, c, side, side) float32 in [0, 1], with classes `labels` (n,)."""
    from kornia.metrics import ssim

    error = ((pictures - originals) ** 2).reshape(len(pictures), -1).mean(1)
    window = 7 if originals.shape[2] >= 16 else 3
    similar = ssim(torch.from_numpy(pictures), torch.from_numpy(originals), window)
    psnr = -10 * np.log10(np.maximum(error, 1e-10))
    return Likeness(float(psnr.mean()), float(similar.mean()), judge.accuracy(pictures, labels))
