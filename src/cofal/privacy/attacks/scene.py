"""The set-up of the attacks on a run: whose images are private, which ones the attacker has, and all their embeddings.

The images of the run's sites are divided at random: half are private and attacked; a quarter are outsiders, images of
the same kind that were not there; the rest, with the test set, are the attacker's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cofal.config import Config
from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.federation.site import Site, open_site
from cofal.federation.site_settings import SETTINGS
from cofal.files import read_json
from cofal.learning.embed import embed
from cofal.learning.frozen import load_frozen
from cofal.learning.state import load_encoder
from cofal.report.facts import Facts
from cofal.rng import generator
from cofal.rundir import RunDir

FEWEST = 200  # images of the sites, below which the parts are too small to measure anything


@dataclass(frozen=True)
class Party:
    """Images that someone has: rows (n, d) unit float32, images (n, h, w, c) uint8, labels (n,), -1 where unknown."""

    rows: np.ndarray
    images: np.ndarray
    labels: np.ndarray

    def take(self, chosen: np.ndarray) -> Party:
        return Party(self.rows[chosen], self.images[chosen], self.labels[chosen])

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Scene:
    """All that the attacks need of a run."""

    config: Config
    classes: list[str]
    sites: list[Party]  # everything each site has, in the order of their names
    test: Party
    private: list[Party]  # by site
    outside: Party
    own: Party  # the attacker's

    @property
    def d(self) -> int:
        return int(self.test.rows.shape[1])

    @property
    def attacked(self) -> Party:
        """The private images of all sites."""
        return _joined(self.private)


def open_scene(folder: RunDir, seed: int, most: int) -> Scene:
    """The scene of a finished run in one process; at most `most` images of all sites take part in the attacks."""
    facts = Facts(folder)
    files = sorted(folder.sites.glob(f"*/{SETTINGS}"))
    if not files:
        raise UserError(f"{folder.path} has no sites to attack; give the folder of a run made by cofal run or demo")
    opened = [open_site(file.parent) for file in files]
    digest = str(read_json(folder.server / "embeddings" / "index.json")["terms"]["digest"])
    sites = [Party(np.asarray(s.embeddings(digest)), s.train.images, s.train.labels) for s in opened]
    images = _test_images(folder, opened)
    frozen = facts.config.encoder.frozen
    encoder = load_frozen(frozen) if frozen else load_encoder(folder.encoder)
    test = Party(embed(encoder, images.images), images.images, images.labels)
    total = sum(map(len, sites))
    if total < FEWEST:
        raise UserError(
            f"the sites of {folder.path} hold {total} images; attacks need at least {FEWEST} to say anything"
        )
    rng = generator(seed, "attack", "parts")
    private, outside, own = [], [], []
    for site in sites:
        order = rng.permutation(len(site))[: max(1, round(len(site) * min(1.0, most / total)))]
        half, three = len(order) // 2, len(order) * 3 // 4
        private.append(site.take(np.sort(order[:half])))
        outside.append(site.take(np.sort(order[half:three])))
        own.append(site.take(np.sort(order[three:])))
    room = test.take(np.sort(rng.permutation(len(test))[: most // 2]))
    return Scene(facts.config, images.classes, sites, test, private, _joined(outside), _joined([*own, room]))


def _test_images(folder: RunDir, sites: list[Site]) -> ImageSet:
    if (folder.server / "test" / "meta.json").exists():
        return ImageSet.open(folder.server / "test")
    held = [site.test for site in sites if site.test is not None]
    if not held:
        raise UserError(f"{folder.path} has no test images, which the attacker needs as images of its own")
    return ImageSet.of(
        np.concatenate([each.images for each in held]),
        [sample for each in held for sample in each.ids],
        np.concatenate([each.labels for each in held]),
        held[0].classes,
    )


def _joined(parties: list[Party]) -> Party:
    return Party(
        np.concatenate([party.rows for party in parties]),
        np.concatenate([party.images for party in parties]),
        np.concatenate([party.labels for party in parties]),
    )
