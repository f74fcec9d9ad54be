"""Between Phase I and II: every site embeds its images; what it shares of that is raw, perturbed, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cofal.config import Config
from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet
from cofal.federation.phases.pretrain import Encoder
from cofal.files import read_json, write_json, write_npy
from cofal.rundir import RunDir


@dataclass(frozen=True)
class Shared:
    """What the server knows of the sites' samples after embedding; embeddings only where a site shared them."""

    share: str  # raw | perturbed | none
    dimension: int
    ids: dict[str, list[str]]  # by site, in the order of the embedding rows
    known: dict[str, list[str]]  # by site: ids whose labels are known from the start
    embeddings: dict[str, np.ndarray]  # by site (n, d) float32; empty if share = none

    def positions(self, site: str, ids: list[str]) -> np.ndarray:
        place = {sample: row for row, sample in enumerate(self.ids[site])}
        return np.array([place[sample] for sample in ids], dtype=np.int64)


def gather(fleet: Fleet, config: Config, run: RunDir, encoder: Encoder) -> Shared:
    """Have every site embed with `encoder`, and keep what was shared in the server's folder for a later process."""
    share = sharing(config)
    noise = {"epsilon": config.selection.epsilon, "mechanism": config.selection.mechanism, "seed": config.seed}
    terms = {"digest": encoder.digest, "share": share, **noise}
    folder = run.server / "embeddings"
    index = folder / "index.json"
    if not (index.exists() and read_json(index)["terms"] == terms):
        fleet.phase = "embed"
        content = {**terms, "model": m.to_json(encoder.model)}
        replies = fleet.ask(m.EMBED, {name: m.pack(arrays=encoder.arrays, config=content) for name in fleet.names})
        sites: dict[str, Any] = {}
        for number, (name, reply) in enumerate(replies.items()):
            said = m.config_of(reply)
            sites[name] = {"ids": list(said["ids"]), "known": list(said["known"]), "file": ""}
            if share != "none":
                rows = m.arrays_of(reply)["embeddings"]
                _check(name, rows, len(sites[name]["ids"]))
                sites[name]["file"] = f"{number}.npy"
                write_npy(folder / sites[name]["file"], rows)
        (dimension,) = {int(m.metrics_of(reply)["dimension"]) for reply in replies.values()}
        write_json(index, {"terms": terms, "dimension": dimension, "sites": sites})
    record = read_json(index)
    sites = record["sites"]
    return Shared(
        share,
        record["dimension"],
        {name: site["ids"] for name, site in sites.items()},
        {name: site["known"] for name, site in sites.items()},
        {name: np.load(folder / site["file"], mmap_mode="r") for name, site in sites.items() if site["file"]},
    )


def sharing(config: Config) -> str:
    """What the server of such a run asks the sites to share of their embeddings: raw | perturbed | none."""
    central = "central" in config.selection.coordination and config.selection.methods != ["random"]
    if not central:
        return "none"
    return "perturbed" if config.selection.epsilon > 0 else "raw"


def _check(name: str, rows: np.ndarray, samples: int) -> None:
    if rows.ndim != 2 or len(rows) != samples or rows.dtype != np.float32:
        raise UserError(
            f"site {name} sent embeddings of shape {rows.shape} {rows.dtype} for {samples} samples; it must embed again"
        )
    if not np.isfinite(rows).all():
        raise UserError(f"site {name} sent embeddings with NaN or infinite values; check its encoder and images")
