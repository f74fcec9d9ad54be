"""A small site with questions, for the tests of the annotators' page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cofal.data.imageset import ImageSet
from cofal.federation.site import open_site
from cofal.federation.site_settings import SiteSettings, create_site
from cofal.labeling.store import LabelStore

DIGEST = "ab12"
WHY = {"method": "maxherding", "coordination": "central", "digest": DIGEST}


def make_site(
    folder: Path,
    *,
    ids: Sequence[str],
    asked: Sequence[str],
    classes: Sequence[str] = ("cat", "dog", "fox"),
    images: np.ndarray | None = None,
    embeddings: np.ndarray | None = None,
    known: dict[str, int] | None = None,
    name: str = "north",
) -> LabelStore:
    """A site at `folder` whose images have the names `ids`, with those in `asked` put to its annotators.

    known: class number by id, of the images labelled before.
    """
    rng = np.random.default_rng(7)
    known = known or {}
    if images is None:
        images = rng.integers(0, 256, (len(ids), 8, 8, 1), dtype=np.uint8)
    labels = np.array([known.get(sample, -1) for sample in ids])
    ImageSet.of(images, ids, labels, classes).save(folder / "images")
    create_site(folder, SiteSettings(name=name, images="images", known_labels=list(known)))
    if embeddings is None:
        embeddings = rng.normal(size=(len(ids), 4)).astype(np.float32)
    embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    open_site(folder).keep_embeddings(DIGEST, embeddings.astype(np.float32))
    store = LabelStore.open(folder, list(classes))
    store.ask("main", asked, why=dict.fromkeys(asked, WHY))
    return store
