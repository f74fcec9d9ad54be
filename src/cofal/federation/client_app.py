"""The client's side of every phase: handlers that call an algorithm on the site's data and pack the answer.

Each declares what kind of thing it sends; `gate` lets it out, or not.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from flwr.app import RecordDict

import cofal
from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation import models
from cofal.federation.gate import Egress, GatedApp, Request
from cofal.federation.questions import common_question, noted_question
from cofal.federation.site import Site, checked_digest
from cofal.labeling.reasons import told_why
from cofal.learning.batches import one_thread
from cofal.learning.classifier import classify, train_classifier
from cofal.learning.embed import embed
from cofal.learning.frozen import load_frozen
from cofal.learning.head import predict_proba, train_head
from cofal.learning.simclr import train_simclr
from cofal.learning.state import encoder_digest, state_to_arrays
from cofal.learning.views import make_augmentation, make_views
from cofal.privacy.perturbation import check_mechanism, noise_scale
from cofal.privacy.policy import Kind
from cofal.privacy.releases import SEEDED, SYSTEM, Version
from cofal.privacy.secure_sum import Session, public_identity, site_identity
from cofal.rng import torch_generator

app = GatedApp()

_MOST_EPOCHS = 1000  # of one round: more would hold the site's machine for a server's mistake


@app.answers(m.DESCRIBE, sends=Kind.DESCRIPTION)
def describe(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """Who is here: name, classes, image shape, how many samples and test samples."""
    _, height, width, channels = site.train.images.shape
    return m.pack(
        config={"name": site.name, "classes": list(site.train.classes), "image-shape": [height, width, channels]},
        metrics={
            m.EXAMPLES: len(site.train.ids),
            "known-labels": len(site.settings.known_labels),
            "test-examples": len(site.test.ids) if site.test else 0,
        },
    )


def _sharing(site: Site, arrays: dict[str, np.ndarray], config: Request) -> Egress:
    """What an answer to `query.embed` would send; noise of size 0 is no noise."""
    share = config["share"]
    if share == "none":
        return Egress(Kind.DESCRIPTION)
    if share == "perturbed":
        version = _version(site, config)
        if version.epsilon > 0:
            return Egress(Kind.PERTURBED, {**version.parameters, "again": site.releases.has(version)})
    elif share != "raw":
        raise UserError(f"cannot share embeddings as {share!r}; known: raw, perturbed, none")
    return Egress(Kind.RAW)


def _version(site: Site, config: Request) -> Version:
    """The noised version that is asked for; the request's seed counts only where the site's policy says so."""
    epsilon, mechanism = config.number("epsilon"), str(config.get("mechanism", "tangent"))
    noise_scale(epsilon)  # refuses what is no amount of noise
    check_mechanism(mechanism)
    seeded = site.settings.policy.reproducible_noise and "seed" in config
    return Version(checked_digest(str(config["digest"])), epsilon, mechanism, SEEDED if seeded else SYSTEM)


@app.answers(m.EMBED, sends=_sharing)
def embed_images(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """Embed all images with the given (or the site's own frozen) encoder; share those of the pool or keep them here.

    The ids of all samples leave with their embeddings only: they say which row is which, and `known` which of them are
    labelled or among the first `asked` of the track.
    """
    digest, kind = str(config["digest"]), _sharing(site, arrays, config).kind
    limit = site.settings.policy.max_releases
    if kind == Kind.PERTURBED:
        site.releases.check(site.name, _version(site, config), limit)  # before the work
    if not site.has_embeddings(digest):
        encoder = _encoder(site, arrays, json.loads(str(config["model"])), digest)
        site.keep_embeddings(digest, embed(encoder, site.train.images, device=site.settings.device))
    embeddings, pool = site.embeddings(digest), site.pool(_selection(config))
    numbers = {m.EXAMPLES: len(pool), "dimension": embeddings.shape[1]}
    if kind == Kind.DESCRIPTION:
        return m.pack(config={"ids": [], "known": []}, metrics=numbers)
    if kind == Kind.PERTURBED:
        seed = int(config.get("seed", 0))
        embeddings = site.releases.get(site.name, _version(site, config), embeddings, seed, limit)
    taken = pool[site.pool_positions(pool, [*site.settings.known_labels, *_before(site, config)])]
    names = {"ids": [site.train.ids[row] for row in pool], "known": [site.train.ids[row] for row in taken]}
    shared = embeddings if len(pool) == len(embeddings) else embeddings[pool]
    return m.pack(arrays={"embeddings": shared}, config=names, metrics=numbers)


def _selection(config: Request) -> str:
    """The selection that a request belongs to: the pool of samples stays the same to its end."""
    return f"{config['track']} {config.count('selection')}" if "selection" in config else ""


def _before(site: Site, config: Request) -> list[str]:
    """The samples asked for before the selection that a request belongs to: the first `asked` of its track."""
    return site.asked(str(config["track"]))[: config.count("asked")] if "asked" in config else []


@app.answers(m.PICK, sends=Kind.IDS)
def pick_alone(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """Per-client selection: the same selector on this site alone, after the first `asked` samples of the track."""
    pool = site.pool(_selection(config))
    config.count("asked")
    taken = site.pool_positions(pool, [*site.settings.known_labels, *_before(site, config)])
    picks = cofal.select(
        [site.pool_embeddings(str(config["digest"]), pool)],
        [config.count("budget")],
        method=str(config["method"]),
        coordination="per-client",
        labeled=[taken],
        seed=config.count("seed"),
        **json.loads(str(config["params"])),
    )
    return m.pack(config={"ids": [site.train.ids[pool[row]] for row in picks.indices[0]]})


@app.answers(m.ASSIGN, sends=Kind.METRIC)
def assign(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """Take note of this site's own picks: they wait for labels from now on, after the first `asked` of the track."""
    track = str(config["track"])
    site.ask(track, [*_before(site, config), *(str(sample) for sample in config["ids"])], told_why(config))
    return m.pack(metrics=site.counts(track))


@app.answers(m.PROGRESS, sends=Kind.METRIC)
def progress(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """How far the labelling of a track is, in numbers."""
    return m.pack(metrics=site.counts(str(config["track"])))


def _aggregating(site: Site, arrays: dict[str, np.ndarray], config: Request) -> Egress:
    """What an answer to a question of an aggregate selection sends: the numbers themselves, or masked ones."""
    noted = {**noted_question(arrays, config), "min_region": site.settings.policy.min_region}
    if noise := site.settings.policy.count_noise:
        noted |= {"count_noise": f"{noise.mechanism} {noise.parameter:g}"}
    return Egress(Kind.SECURE_SUM if "session" in config else Kind.AGGREGATE, noted)


@app.answers(m.AGGREGATE, sends=_aggregating)
def aggregate(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """One question of an aggregate selection; asked within a session, the answer leaves under masks."""
    from cofal.federation.holding import answer_question  # compiled selectors: other requests need not load them

    answer = answer_question(site, arrays, config)
    if "session" not in config:
        return m.pack(arrays=answer)
    shapes = {name: list(array.shape) for name, array in answer.items()}
    masked = _session(site, config).masked(int(config.number("round")), answer, common_question(arrays, config))
    return m.pack(arrays={"masked": masked}, config={"shapes": m.to_json(shapes)})


def _session(site: Site, config: Request) -> Session:
    """This site's side of the session of secure sums that the request names; its keys are signed, always."""
    signer = site_identity(site.folder)
    peers = {name: bytes.fromhex(key) for name, key in site.settings.peers.items()}
    pinned = {**peers, site.name: public_identity(signer)} if peers else None
    return Session.start(site.folder, str(config["session"]), site.name, signer=signer, peers=pinned)


@app.answers(m.SUM_KEYS, sends=Kind.SECURE_SUM)
def sum_keys(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """Join a session of secure sums."""
    return m.pack(config={"key": _session(site, config).keys()})


@app.answers(m.SUM_SHARES, sends=Kind.SECURE_SUM)
def sum_shares(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """Accept who takes part; what the others need to remove this site's masks, sealed for each of them."""
    keys = dict(zip(config["names"], config["keys"], strict=False))
    shares = _session(site, config).shares(keys, int(config.number("rounds")))
    return m.pack(config={"names": list(shares), "shares": list(shares.values())})


@app.answers(m.SUM_UNMASK, sends=Kind.SECURE_SUM)
def sum_unmask(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """Open the sum over the survivors, and nothing else."""
    own = _session(site, config)
    if config["senders"]:
        own.receive(dict(zip(config["senders"], config["shares"], strict=False)))
    return m.pack(config={"opened": own.unmask(int(config.number("round")), list(config["survivors"]))})


@app.answers(m.SUM_CLOSE, sends=Kind.NOTHING)
def sum_close(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """Forget the session's secrets."""
    _session(site, config).close()
    return m.pack(config={})


@app.answers(m.TRAIN, sends=Kind.MODEL)
def train(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """One round of local training; the reply carries all of the model's state and the number of samples behind it."""
    job, track = str(config["job"]), str(config["track"])
    model = models.rebuild(json.loads(str(config["model"])), arrays)
    options: dict[str, Any] = {
        "epochs": config.count("local-epochs", _MOST_EPOCHS),
        "batch_size": max(config.count("batch-size"), 1),
        "lr": config.number("lr"),
        "optimizer": str(config["optimizer"]),
        "momentum": config.number("momentum"),
        "weight_decay": config.number("weight-decay"),
        "proximal_mu": config.number("proximal-mu") if "proximal-mu" in config else 0.0,
        "generator": torch_generator(config.count("seed"), job, track, site.name, config.count("server-round")),
    }
    _, size, _, channels = site.train.images.shape
    if job == "encoder":
        views = make_views(str(config["views"]), size, channels)
        examples = len(site.train.ids)
        loss = train_simclr(
            model,
            site.train.images,
            views=views,
            temperature=config.number("temperature"),
            device=site.settings.device,
            **options,
        )
    else:
        rows, labels = site.labelled(track)
        examples = len(rows)
        if job == "head":
            with one_thread():
                loss = train_head(model, site.embeddings(str(config["digest"]))[rows], labels, **options)
        else:
            augment = make_augmentation(str(config["views"]), size, channels)
            loss = train_classifier(
                model, site.train.images[rows], labels, augment=augment, device=site.settings.device, **options
            )
    return m.pack(arrays=state_to_arrays(model), metrics={m.EXAMPLES: examples, "loss": float(loss)})


@app.answers(m.EVALUATE, sends=Kind.METRIC)
def evaluate(site: Site, arrays: dict[str, np.ndarray], config: Request) -> RecordDict:
    """How many of this site's test images the classifier gets right."""
    if site.test is None:
        raise UserError(f"site {site.name} holds no test images")
    description = json.loads(str(config["model"]))
    weights = {key.removeprefix("model/"): value for key, value in arrays.items() if key.startswith("model/")}
    model = models.rebuild(description, weights)
    if description["kind"] == "image":
        probabilities = classify(model, site.test.images, device=site.settings.device)
    else:
        encoder_arrays = {
            key.removeprefix("encoder/"): value for key, value in arrays.items() if key.startswith("encoder/")
        }
        encoder = _encoder(site, encoder_arrays, json.loads(str(config["encoder"])), str(config["digest"]))
        probabilities = predict_proba(model, embed(encoder, site.test.images, device=site.settings.device))
    correct = int((probabilities.argmax(axis=1) == site.test.labels).sum())
    return m.pack(metrics={m.EXAMPLES: len(site.test.ids), "correct": correct})


def _encoder(site: Site, arrays: dict[str, np.ndarray], description: dict[str, Any], digest: str) -> Any:
    """The encoder the server describes: with the weights it sent, or the public one installed at this site."""
    if description["kind"] != "frozen":
        if (
            encoder_digest(arrays)[:16] != digest
        ):  # embeddings and noise are kept by digest: it must be the encoder's own
            raise UserError(f"encoder digest {digest[:80]!r} is not that of the weights sent with it; send its own")
        return models.rebuild(description, arrays)
    if not site.settings.frozen:
        raise UserError(f"site {site.name} has no public encoder; name one in its settings")
    if models.frozen_digest(site.settings.frozen) != digest:
        raise UserError(
            f"site {site.name} has another public encoder than the server; install the same file at every site"
        )
    return load_frozen(site.settings.frozen)
