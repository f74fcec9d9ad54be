"""The picked images and their labels, read from the folders of simulated sites; a deployment's server has none."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.federation.site_settings import SETTINGS, read_settings
from cofal.report.facts import Facts, Pick

SIDE = 64  # pixels of a thumbnail's longer side; smaller images stay as they are and are scaled by the page
PER_CLIENT = 5
_MOST_CLIENTS = 12


@dataclass(frozen=True)
class Picture:
    """A thumbnail as a data URI, with the class its oracle gave."""

    source: str
    label: str
    pick: Pick


class Gallery:
    """Images and labels of a simulated run's picks."""

    def __init__(self, sets: dict[str, ImageSet]):
        self._sets = sets  # by client; clients of one data set share one object
        self._row = {id(images): {sample: row for row, sample in enumerate(images.ids)} for images in sets.values()}

    def holds(self, pick: Pick) -> bool:
        return pick.client in self._sets and pick.id in self._row[id(self._sets[pick.client])]

    def label(self, pick: Pick) -> str | None:
        images, row = self._find(pick)
        number = int(images.labels[row])
        return images.classes[number] if number >= 0 else None

    def first(self, picks: list[Pick]) -> dict[str, list[Picture]]:
        """The first picks of each client, in the order of the clients."""
        found: dict[str, list[Picture]] = {name: [] for name in list(self._sets)[:_MOST_CLIENTS]}
        for pick in picks:
            if pick.client in found and len(found[pick.client]) < PER_CLIENT:
                images, row = self._find(pick)
                found[pick.client].append(Picture(thumbnail(images.images[row]), self.label(pick) or "unknown", pick))
        return found

    @property
    def classes(self) -> list[str]:
        return next(iter(self._sets.values())).classes

    def classes_seen(self, picks: list[Pick], budget: int) -> int:
        """How many classes the first `budget` picks hold."""
        return len({self.label(pick) for pick in picks[:budget]} - {None})

    def _find(self, pick: Pick) -> tuple[ImageSet, int]:
        images = self._sets[pick.client]
        return images, self._row[id(images)][pick.id]


def gallery(facts: Facts) -> Gallery | None:
    """The gallery of a simulated run; None without the sites' folders, or where their images are gone."""
    opened: dict[Path, ImageSet] = {}
    sets: dict[str, ImageSet] = {}
    try:
        for file in sorted(facts.run.sites.glob(f"*/{SETTINGS}")):
            settings = read_settings(file.parent)
            if not settings.oracle:
                return None
            folder = (file.parent / settings.images).resolve()
            if folder not in opened:
                opened[folder] = ImageSet.open(folder)
            sets[settings.name] = opened[folder]
    except (UserError, ValueError):  # the cache of decoded images was emptied, or the run came from another machine
        return None
    found = Gallery(sets)
    asked = [pick for picks in facts.picks.values() for pick in picks]
    return found if asked and all(map(found.holds, asked)) else None


def thumbnail(image: np.ndarray) -> str:
    """(h, w, c) uint8 -> a data URI: PNG for small images, JPEG for photographs."""
    from PIL import Image

    height, width, channels = image.shape
    picture = Image.fromarray(np.ascontiguousarray(image[:, :, 0] if channels == 1 else image))
    small = max(height, width) <= SIDE // 2
    if not small:
        picture.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG" if small else "JPEG", **({"optimize": True} if small else {"quality": 80}))
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
