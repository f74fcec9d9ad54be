"""scikit-learn's digits: 1,797 grey images of 8 x 8, inside the package, so that a first run needs no download."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cofal.data.listing import Finding, Listing, Source, no_column, numbered
from cofal.data.settings import DataSettings


def find(settings: DataSettings) -> Finding:
    no_column(settings)
    return Finding([], _load)


def _load() -> Source:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[
        ..., None
    ]  # (1797, 8, 8, 1); the source counts 0 to 16

    def blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
        yield images[rows]

    labels = bunch.target.astype(np.int64)
    return Source(
        [str(name) for name in bunch.target_names],
        Listing("digits", numbered("digits", len(labels)), labels, None, blocks),
        None,
    )
