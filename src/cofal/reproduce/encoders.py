"""The encoders an experiment needs, trained once by Phase I of the pipeline and cached with their embeddings.

A *shared* encoder is the FedAvg of all clients of a split. An *own* encoder is what one client gets alone: the same
network, the same rounds, in a federation of one. Layout below the encoders' folder:

    SET-KEY/labels.npz                     labels of the set's training and test images
    SET-KEY/SPLIT-sSEED/                   a run directory: the sites of that split, the shared encoder
    SET-KEY/SPLIT-sSEED/own/SITE/          a run directory: that site's own encoder
    .../embeddings/{train,test}.npy        unit rows; of the whole training set (shared), of the site's part (own)
    .../embeddings/facts.json              written last: digest, 10-NN accuracy, rounds, images, seconds
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cofal.config import Config, to_toml
from cofal.errors import UserError
from cofal.federation.site_settings import create_site, read_settings
from cofal.files import atomic, read_json, write_json, write_npy, write_text
from cofal.reproduce.scales import Scale, SetPlan, Split
from cofal.rundir import RunDir


@dataclass(frozen=True)
class EncoderJob:
    """One encoder to train: the shared one of a split (`site` empty), or the own one of a site."""

    set: str
    split: str
    alpha: float | None
    seed: int
    site: str = ""

    @property
    def on(self) -> Split:
        return Split.model_validate({"split": self.split, "alpha": self.alpha})

    @property
    def title(self) -> str:
        whose = f"own encoder of {self.site}" if self.site else "shared encoder"
        return f"{self.set}, {self.on.name}, seed {self.seed}, {whose}"


def site_names(clients: int) -> list[str]:
    """The names `federation.embedded.prepare` gives to simulated sites."""
    digits = len(str(clients - 1))
    return [f"site-{number:0{digits}d}" for number in range(clients)]


def encoder_jobs(scale: Scale, only: list[str] | None = None) -> list[EncoderJob]:
    """All encoders of a scale, shared ones first: they serve most tables."""
    trained = [name for name, plan in scale.sets.items() if plan.kind == "trained"]
    for name in only or []:
        if name not in trained:
            raise UserError(f"no encoders are trained for {name!r} at this scale; choose one of {', '.join(trained)}")
    shared, own = [], []
    for name, plan in scale.sets.items():
        if name not in (trained if only is None else only):
            continue
        for entry in plan.shared:
            shared += [EncoderJob(name, entry.split, entry.alpha, seed) for seed in entry.seeds]
        for entry in plan.own:
            own += [
                EncoderJob(name, entry.split, entry.alpha, seed, site)
                for seed in entry.seeds
                for site in site_names(plan.clients)
            ]
    return shared + own


class EncoderFolder:
    """Where the encoders of a scale lie, and whether they are finished."""

    def __init__(self, root: Path, scale: Scale):
        self.root, self.scale = root, scale

    def set_folder(self, name: str) -> Path:
        return self.root / f"{name}-{self.scale.sets[name].key()}"

    def run(self, job: EncoderJob) -> RunDir:
        folder = self.set_folder(job.set) / f"{job.on.name}-s{job.seed}"
        return RunDir(folder / "own" / job.site if job.site else folder)

    def facts_file(self, job: EncoderJob) -> Path:
        return self.run(job).path / "embeddings" / "facts.json"

    def finished(self, job: EncoderJob) -> bool:
        return self.facts_file(job).exists()

    def facts(self, job: EncoderJob) -> dict[str, Any]:
        """What is known of a finished encoder; a missing one is told with the command that trains it."""
        if not self.finished(job):
            raise UserError(
                f"no trained encoder for {job.title} in {self.root}; "
                "train it with `cofal reproduce encoders` and the same --scale, --data and --encoders"
            )
        return read_json(self.facts_file(job))

    def embeddings(self, job: EncoderJob) -> tuple[np.ndarray, np.ndarray]:
        """Training rows (n, d) and test rows (m, d), mapped from their files."""
        folder = self.facts_file(job).parent
        train, test = (np.load(folder / f"{part}.npy", mmap_mode="r", allow_pickle=False) for part in ("train", "test"))
        return train, test

    def labels(self, name: str) -> tuple[np.ndarray, np.ndarray, int]:
        """Training labels (n,), test labels (m,) and the number of classes of a set whose encoders are trained."""
        with np.load(self.set_folder(name) / "labels.npz", allow_pickle=False) as file:
            return file["train"], file["test"], int(file["classes"])


def digest_of(*arrays: np.ndarray) -> str:
    """SHA-256 (hex) over types, shapes and bytes: what tells one set of embeddings and labels from another."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.dtype.str} {array.shape} ".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


def prepare_sites(folder: EncoderFolder, data: Path, cache: Path, jobs: list[EncoderJob]) -> None:
    """Decode the images and lay out the sites of every split in `jobs`; done parts are left as they are."""
    from cofal.data.readers import read
    from cofal.federation.embedded import prepare

    for job in jobs:
        config = _config(folder, job, data)
        split_run = folder.run(EncoderJob(job.set, job.split, job.alpha, job.seed))
        with split_run.alone():
            _note_config(split_run, config)
            prepare(config, split_run, cache)
        labels = folder.set_folder(job.set) / "labels.npz"
        if not labels.exists():
            train, test = read(config.data, cache)
            with atomic(labels) as temporary, open(temporary, "wb") as file:
                np.savez(file, train=train.labels, test=test.labels, classes=len(train.classes))


def train_encoder(folder: EncoderFolder, data: Path, cache: Path, job: EncoderJob) -> dict[str, Any]:
    """Train one encoder from where it stopped, embed with it, and note its facts; a finished one is only read."""
    from cofal.data.imageset import ImageSet
    from cofal.data.readers import read
    from cofal.federation.client_app import app as client_app
    from cofal.federation.fleet import Fleet
    from cofal.federation.grid import InProcessGrid
    from cofal.federation.phases.pretrain import pretrain
    from cofal.learning.embed import embed, knn_accuracy

    if folder.finished(job):
        return folder.facts(job)
    config, run = _config(folder, job, data), folder.run(job)
    split_run = folder.run(EncoderJob(job.set, job.split, job.alpha, job.seed))
    with run.alone():
        _note_config(run, config)
        sites = [_own_site(split_run, run, job.site)] if job.site else sorted(split_run.sites.glob("site-*"))
        nodes = {number + 2: {"site": str(site)} for number, site in enumerate(sites)}
        fleet = Fleet.gather(InProcessGrid(client_app, nodes), expected=len(nodes), timeout=config.engine.timeout)
        network = pretrain(fleet, config, run, ImageSet.open(split_run.server / "test")).network
        train, test = read(config.data, cache)
        rows = np.load(sites[0] / "rows.npy") if job.site else np.arange(len(train))
        part = train.subset(rows)
        made = {
            "train": embed(network, part.images, device=config.engine.device),
            "test": embed(network, test.images, device=config.engine.device),
        }
        for name, array in made.items():
            write_npy(run.path / "embeddings" / f"{name}.npy", array)
        facts = {
            **asdict(job),
            "digest": digest_of(*made.values(), part.labels, test.labels),
            "knn": round(knn_accuracy(made["train"], part.labels, made["test"], test.labels), 4),
            "arch": config.encoder.arch,
            "rounds": config.pretrain.rounds,
            "images": len(part),
            "seconds": round(sum(line["seconds"] for line in run.rounds()), 1),
        }
        write_json(folder.facts_file(job), facts)
    return facts


def _config(folder: EncoderFolder, job: EncoderJob, data: Path) -> Config:
    plan: SetPlan = folder.scale.sets[job.set]
    return plan.config(data, job.on, job.seed, folder.scale.device)


def _note_config(run: RunDir, config: Config) -> None:
    """The folder's name stands for the settings; the file is for people. Images may have moved since it was written."""
    if not run.config.exists():
        write_text(run.config, to_toml(config))


def _own_site(split_run: RunDir, run: RunDir, name: str) -> Path:
    """A folder of its own for a site that trains alone: its ledger must not mix with that of the federation."""
    site = run.sites / name
    write_npy(site / "rows.npy", np.load(split_run.sites / name / "rows.npy", allow_pickle=False))
    create_site(site, read_settings(split_run.sites / name))
    return site
