"""Why an image was asked, as far as the site itself can tell: the region it stands for, its labelled neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from cofal.labeling.records import Query

if TYPE_CHECKING:
    from cofal.federation.site import Site
    from cofal.labeling.store import LabelStore

_BLOCK = 4096  # rows compared at a time
_WHY = ("selection", "method", "coordination", "digest", "delta")
_LONGEST = 80  # letters of a text that a server chose


@dataclass(frozen=True)
class Neighbour:
    """A labelled image of the same site, and its distance (0 to 2) in the shared embedding."""

    id: str
    label: str
    distance: float


@dataclass(frozen=True)
class Reason:
    """What the annotator is told."""

    sentences: list[str]
    region: int | None  # images of the site that this one stands for, itself included
    images: int  # images of the site
    neighbours: list[Neighbour]  # nearest first


class Reasons:
    """Reasons over one embedding of a site: (n, d) unit rows in the order of `ids`."""

    def __init__(self, ids: Sequence[str], embeddings: np.ndarray):
        self.rows, self._ids = embeddings, ids
        self._position = {sample: row for row, sample in enumerate(ids)}
        self._cells: tuple[tuple[str, ...], dict[str, int]] = ((), {})

    def of(self, query: Query, asked: Sequence[str], labels: Mapping[str, str], neighbours: int = 4) -> Reason:
        """asked: all ids asked so far; labels: class by id, of the images among which neighbours are sought."""
        own = self._position[query.id]
        region = self._region(query, tuple(asked))
        near = [sample for sample in labels if sample in self._position and sample != query.id]
        distances = _distances(self.rows[[self._position[sample] for sample in near]], self.rows[own])
        order = np.argsort(distances, kind="stable")[:neighbours]
        found = [Neighbour(near[place], labels[near[place]], float(distances[place])) for place in order]
        return Reason(sentences(query, region, len(self._ids)), region, len(self._ids), found)

    def _region(self, query: Query, asked: tuple[str, ...]) -> int:
        """Images within the radius of the selection, or nearer to this image than to any other that was asked."""
        radius = query.why.get("delta")
        if isinstance(radius, (int, float)) and radius > 0:
            own = self.rows[self._position[query.id]]
            blocks = range(0, len(self.rows), _BLOCK)
            return sum(int((_distances(self.rows[begin : begin + _BLOCK], own) <= radius).sum()) for begin in blocks)
        if self._cells[0] != asked:
            self._cells = (asked, self._count_cells([sample for sample in asked if sample in self._position]))
        return self._cells[1].get(query.id, 1)

    def _count_cells(self, asked: Sequence[str]) -> dict[str, int]:
        centres = np.asarray(self.rows[[self._position[sample] for sample in asked]])
        counts = np.zeros(len(asked), dtype=np.int64)
        for begin in range(0, len(self.rows) if asked else 0, _BLOCK):
            nearest = (self.rows[begin : begin + _BLOCK] @ centres.T).argmax(axis=1)  # of unit rows
            counts += np.bincount(nearest, minlength=len(asked))
        return dict(zip(asked, counts.tolist(), strict=True))


def told_why(request: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What a request of the server says about its choice, fit to be kept with the questions; long texts are cut."""
    told = {**{key: request[key] for key in _WHY if key in request}, **more}
    return {key: value if isinstance(value, (int, float)) else str(value)[:_LONGEST] for key, value in told.items()}


_kept: WeakKeyDictionary[Site, tuple[str, Reasons]] = WeakKeyDictionary()  # by site, of the encoder last asked for


def explain(site: Site, store: LabelStore, query: Query, annotator: str) -> Reason:
    """What to tell `annotator` of one of a site's questions; no label of an image that waits for his second opinion.

    Embeddings are read when first needed, regions counted once a list.
    """
    digest, images = str(query.why.get("digest", "")), len(site.train.ids)
    if not digest or not site.has_embeddings(digest):
        return Reason(sentences(query, None, images), None, images, [])
    if site not in _kept or _kept[site][0] != digest:
        _kept[site] = (digest, Reasons(site.train.ids, site.embeddings(digest)))
    secret = store.wants_opinion_of(annotator)
    labels = {sample: label for sample, label in store.labels().items() if sample not in secret}
    return _kept[site][1].of(query, store.asked(query.track), site.known_classes() | labels)


def sentences(query: Query, region: int | None, images: int) -> list[str]:
    """Why the image was asked; with no embedding at hand (region None), only how it was chosen."""
    method, coordination = str(query.why.get("method", "")), str(query.why.get("coordination", ""))
    among = {
        "per-client": "among this site's images alone",
        "central": "among the images of all sites",
        "aggregate": "among the images of all sites, from summaries that name none",
        "auto": "among the images of this site and those like it",
    }.get(coordination, "by the selection")
    how = "drawn at random" if method == "random" else f"chosen {among}"
    by = f" ({method})" if method and method != "random" else ""
    told = [f"Number {query.rank + 1} of selection {query.selection}'s list, {how}{by}."]
    if region is not None and method != "random":
        told.insert(0, f"Typical of a region of {region:,} of this site's {images:,} images.")
    return told


def _distances(rows: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Euclidean distances (m,) of unit rows (m, d) to a unit row (d,)."""
    return np.sqrt(np.maximum(0.0, 2.0 - 2.0 * (np.asarray(rows) @ row)))
