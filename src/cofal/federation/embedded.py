"""The embedded engine's set-up: simulated sites on disk, and the two apps run in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from flwr.app import Context, RecordDict

from cofal.config import Config
from cofal.data.imageset import ImageSet
from cofal.data.partition import partition
from cofal.data.readers import read
from cofal.errors import UserError
from cofal.federation.grid import InProcessGrid
from cofal.federation.site import read_known_labels
from cofal.federation.site_settings import SETTINGS, SiteSettings, create_site
from cofal.files import read_json, write_json, write_npy
from cofal.privacy.answered import ALL
from cofal.privacy.ledger import FILE as LEDGER
from cofal.privacy.ledger import HEAD as LEDGER_HEAD
from cofal.privacy.policy import Kind, Policy
from cofal.rng import generator
from cofal.rundir import RunDir


def default_cache() -> Path:
    """Where decoded images are kept between runs."""
    return Path(os.environ.get("COFAL_CACHE", Path.home() / ".cache" / "cofal"))


def prepare(config: Config, run: RunDir, cache: Path) -> int:
    """Make the run's sites and the server's test set, once; returns the number of sites."""
    done = run.sites / "ready.json"
    if done.exists():
        ready = read_json(done)
        if not Path(ready["images"]).exists():  # the cache was emptied since: decode once more
            read(config.data, cache)
        return int(ready["sites"])
    train, test = read(config.data, cache)
    rng = generator(config.seed, "partition")
    parts = partition(
        train.labels,
        config.clients.count,
        split=config.clients.split,
        alpha=config.clients.alpha,
        groups=train.groups,
        rng=rng,
    )
    names = _names(train, parts, config)
    known = _known(config, train)
    test_parts = None
    if config.train.evaluate == "clients":
        test_parts = partition(test.labels, len(parts), split="iid", rng=generator(config.seed, "test partition"))
    else:
        test.save(run.server / "test")
    source = _folder_of(train, run)
    test_source = _folder_of(test, run) if test_parts else ""
    for number, (name, rows) in enumerate(zip(names, parts, strict=True)):
        folder = run.sites / name
        write_npy(folder / "rows.npy", rows)
        if test_parts:
            write_npy(folder / "test_rows.npy", test_parts[number])
        settings = SiteSettings(
            name=name,
            images=source,
            rows="rows.npy",
            test_images=test_source,
            test_rows="test_rows.npy" if test_parts else "",
            known_labels=[train.ids[row] for row in rows if train.ids[row] in known],
            oracle=True,
            frozen=config.encoder.frozen,
            device=config.engine.device,
            policy=_policy(config),
            ledger_sync=False,
        )
        create_site(folder, settings)
    run.note(
        seed=config.seed,
        data={"digest": train.digest, "test_digest": test.digest, "train": len(train), "test": len(test),
              "classes": train.classes, "skipped": train.skipped + test.skipped},
    )  # fmt: skip
    write_json(done, {"sites": len(parts), "images": source})
    return len(parts)


def run_embedded(config: Config, folder: Path, cache: Path | None = None) -> RunDir:
    """One run in this process: prepare the sites, then call the ServerApp over an in-process Grid."""
    # Imported here: a deployment's server imports neither the sites nor this module, and `prepare` needs no torch.
    from cofal.federation.client_app import app as client_app
    from cofal.federation.server_app import app as server_app

    run = RunDir(folder)
    with run.alone(), opened(run, config):
        if run.results.exists():
            return run
        count = prepare(config, run, cache or default_cache())
        nodes = {
            number + 2: {"site": str(file.parent)}
            for number, file in enumerate(sorted(run.sites.glob(f"*/{SETTINGS}")))
        }
        context = Context(
            run_id=1,
            node_id=1,
            node_config={},
            state=RecordDict(),
            run_config={"run-dir": str(run.path), "sites": count},
        )
        server_app(InProcessGrid(client_app, nodes), context)
    return run


# All that a run has before anything is computed: what `prepare` lays out, and the ledgers of the sites' first answers.
_LAID_OUT = (
    "config.toml", "run.json", "server/test/*", "sites/ready.json", "sites/images-*/*",
    *(f"sites/*/{name}" for name in (SETTINGS, "rows.npy", "test_rows.npy", LEDGER, LEDGER_HEAD)),
)  # fmt: skip


@contextmanager
def opened(run: RunDir, config: Config) -> Iterator[None]:
    """Open the run; if it is started here and fails before anything is computed, empty its folder again.

    So that the same folder takes the corrected configuration. A file of any other name, computed or not of our making,
    keeps everything as it is.
    """
    started = run.open(config)
    try:
        yield
    except BaseException:
        laid_out = {file for pattern in _LAID_OUT for file in run.path.glob(pattern)}
        found = sorted(run.path.rglob("*"), reverse=True)  # what is in a folder before the folder
        files = {entry for entry in found if not entry.is_dir()} - {run.path / ".lock"}
        if started and files <= laid_out:
            with suppress(OSError):  # the failure itself is what counts
                for entry in found:
                    if entry in files:
                        entry.unlink()
                    elif entry.is_dir():
                        entry.rmdir()
        raise


def _policy(config: Config) -> Policy:
    """What the sites of an experiment let out: what its configuration needs and nothing more."""
    chosen, kinds = config.selection, [Kind.MODEL]
    if chosen.embeddings != "none":
        kinds.append(Kind(chosen.embeddings))
    if chosen.aggregating:
        kinds.append(Kind.AGGREGATE)
    if "per-client" in chosen.coordination or "random" in chosen.methods:
        kinds.append(Kind.IDS)
    return Policy(
        allow=sorted(kinds),
        min_epsilon=chosen.epsilon,
        min_region=chosen.min_region,
        count_noise=chosen.count_noise,
        reproducible_noise=True,
        max_questions=ALL,
    )


def _names(train: ImageSet, parts: list[np.ndarray], config: Config) -> list[str]:
    """A natural split keeps its names; else site-0, site-1, ..., zero-padded so that names sort as the parts do."""
    if config.clients.split == "by-column" and train.groups is not None:
        safe = ["".join(c if c.isalnum() or c in "-_" else "-" for c in train.groups[rows[0]]) for rows in parts]
        if len(set(safe)) == len(safe) and all(safe):
            return safe
    digits = len(str(len(parts) - 1))
    return [f"site-{number:0{digits}d}" for number in range(len(parts))]


def _known(config: Config, train: ImageSet) -> set[str]:
    if not config.clients.labeled:
        return set()
    known = read_known_labels(config.clients.labeled)
    label = dict(zip(train.ids, train.labels, strict=True))
    for sample, text in known.items():
        if sample not in label:
            raise UserError(
                f"{config.clients.labeled} names {sample!r}, which is not in the training set; remove that line"
            )
        if label[sample] >= 0 and train.classes[label[sample]] != text:
            raise UserError(
                f"{config.clients.labeled} says {sample!r} is {text!r}, "
                f"the data set says {train.classes[label[sample]]!r}; correct one of them"
            )
    return set(known)


def _folder_of(images: ImageSet, run: RunDir) -> str:
    """The folder of a set that `read` opened from the cache; one that is not on disk is saved beside the sites."""
    source = getattr(images.images, "filename", None)
    if source is not None:
        return str(Path(source).parent)
    folder = run.sites / f"images-{images.digest[:12]}"
    images.save(folder)
    return str(folder.resolve())
