"""Between Phase I and II: every site embeds its images; what it shares of that is raw, perturbed, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import RecordDict

from cofal.config import Config
from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet, Unusable
from cofal.federation.phases.pretrain import Encoder
from cofal.files import read_json, write_json, write_npy
from cofal.rundir import MAIN, RunDir


@dataclass(frozen=True)
class Shared:
    """What the server knows of the sites' samples after embedding; embeddings only where a site shared them."""

    share: str  # raw | perturbed | none
    dimension: int
    ids: dict[str, list[str]]  # by site, in the order of the embedding rows
    known: dict[str, list[str]]  # by site: ids that are labelled, or asked for, already
    embeddings: dict[str, np.ndarray]  # by site (n, d) float32; empty if share = none
    pool: dict[str, int]  # by site: how many samples a selection may use; skipped ones are not among them

    def positions(self, site: str, ids: list[str]) -> np.ndarray:
        place = {sample: row for row, sample in enumerate(self.ids[site])}
        return np.array([place[sample] for sample in ids], dtype=np.int64)


def gather(
    fleet: Fleet,
    config: Config,
    run: RunDir,
    encoder: Encoder,
    asked: Mapping[str, int] | None = None,
    selection: int = 0,
) -> Shared:
    """Have every site embed with `encoder`, and keep what was shared in the server's folder for a later process.

    A site whose share is here already is not asked again, unless `asked` is given (by site: samples asked for before
    selection number `selection`): then every site shares its pool as it is at that selection, without what was skipped,
    and says which of it is asked for. A site that does not answer takes no part in what follows.
    """
    share = config.selection.embeddings
    noise = {"epsilon": config.selection.epsilon, "mechanism": config.selection.mechanism, "seed": config.seed}
    terms = {"digest": encoder.digest, "share": share, **noise}
    samples = {name: member.samples for name, member in fleet.members.items()}
    store = _Store(run.server / "embeddings", terms, samples)
    due = [name for name in fleet.names if name not in store.sites or asked is not None]
    if due:
        fleet.phase = "embed"
        content = m.pack(arrays=encoder.arrays, config={**terms, "model": m.to_json(encoder.model)})
        contents = {
            name: m.with_config(content, track=MAIN, asked=asked[name], selection=selection)
            if asked is not None
            else content
            for name in due
        }
        enough = None if fleet.min_clients is None else fleet.min_clients - (len(fleet.names) - len(due))
        store.put(fleet.ask(m.EMBED, contents, store.read, at_least=enough))
    for name in [name for name in fleet.names if name not in store.sites]:
        del fleet.members[name]
    return store.open(share, fleet.names)


class _Store:
    """What the sites shared, in files: `index.json` names the terms, and for each site its ids and its file."""

    def __init__(self, folder: Path, terms: Mapping[str, Any], samples: Mapping[str, int]):
        self.folder, self.terms, self.samples = folder, dict(terms), samples
        self._index = folder / "index.json"
        record = read_json(self._index) if self._index.exists() else {}
        self.sites: dict[str, Any] = record["sites"] if record.get("terms") == self.terms else {}
        self._dimension = record.get("dimension", 0)
        old = [site["file"] for site in record.get("sites", {}).values() if site["file"]]
        self._next = 1 + max((int(file.removesuffix(".npy")) for file in old), default=-1)

    def read(self, name: str, content: RecordDict) -> tuple[int, dict[str, Any]]:
        """A site's answer: the dimension, and its entry of the index; its rows go to a file at once."""
        said, numbers = m.config_of(content), m.metrics_of(content)
        entry: dict[str, Any] = {key: [str(each) for each in said[key]] for key in ("ids", "known")}
        entry |= {"file": "", "pool": numbers[m.EXAMPLES]}
        dimension = numbers["dimension"]
        if not isinstance(entry["pool"], int) or not 0 <= entry["pool"] <= self.samples[name]:
            raise Unusable(f"a pool of {str(entry['pool'])[:40]} samples; the site has {self.samples[name]}")
        if not isinstance(dimension, int) or dimension < 1:
            raise Unusable(f"its embeddings have {str(dimension)[:40]} dimensions")
        if self.terms["share"] != "none":
            rows = m.arrays_of(content)["embeddings"]
            if rows.shape != (entry["pool"], dimension) or rows.dtype != np.float32:
                raise Unusable(
                    f"embeddings of shape {rows.shape} {rows.dtype} for {entry['pool']} samples in {dimension} "
                    "dimensions"
                )
            if not np.isfinite(rows).all():
                raise Unusable("embeddings with NaN or infinite values; check the site's encoder and images")
            ids = set(entry["ids"])
            if not len(ids) == len(entry["ids"]) == len(rows) or not ids.issuperset(entry["known"]):
                raise Unusable("ids that are not one for each sample")
            entry["file"] = f"{self._next}.npy"
            self._next += 1
            write_npy(self.folder / entry["file"], rows)
        return dimension, entry

    def put(self, answers: Mapping[str, tuple[int, dict[str, Any]]]) -> None:
        dimensions = {name: dimension for name, (dimension, _) in answers.items()}
        if self.sites:
            dimensions["the sites before"] = self._dimension
        if len(set(dimensions.values())) != 1:
            told = ", ".join(f"{name} {dimension}" for name, dimension in dimensions.items())
            raise UserError(f"the sites embed in different dimensions ({told}); use the same encoder everywhere")
        (self._dimension,) = set(dimensions.values())
        self.sites |= {name: entry for name, (_, entry) in answers.items()}
        write_json(self._index, {"terms": self.terms, "dimension": self._dimension, "sites": self.sites})
        named = {site["file"] for site in self.sites.values()}
        for file in self.folder.glob("*.npy"):
            if file.name not in named:
                file.unlink()

    def open(self, share: str, names: list[str]) -> Shared:
        sites = {name: self.sites[name] for name in names}
        return Shared(
            share,
            self._dimension,
            {name: site["ids"] for name, site in sites.items()},
            {name: site["known"] for name, site in sites.items()},
            {name: np.load(self.folder / site["file"], mmap_mode="r") for name, site in sites.items() if site["file"]},
            {name: site["pool"] for name, site in sites.items()},
        )
