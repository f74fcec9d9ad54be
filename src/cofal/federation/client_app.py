"""The client's side of every phase: handlers that open the site, call an algorithm, pack the answer."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from cofal.errors import CofalError, UserError
from cofal.federation import messages as m
from cofal.federation import models
from cofal.federation.site import Site, open_site
from cofal.learning.classifier import classify, train_classifier
from cofal.learning.embed import embed
from cofal.learning.frozen import load_frozen
from cofal.learning.head import predict_proba, train_head
from cofal.learning.simclr import train_simclr
from cofal.learning.state import state_to_arrays
from cofal.learning.views import make_augmentation, make_views
from cofal.privacy.perturbation import perturb
from cofal.rng import generator, torch_generator
from cofal.selection import select

app = ClientApp()

Handler = Callable[[Site, dict[str, np.ndarray], dict[str, Any]], RecordDict]


def answers(handler: Handler) -> Callable[[Message, Context], Message]:
    """Wrap a handler: open the site, unpack the message, pack the reply; a refusal travels back as one line."""

    @functools.wraps(handler)
    def wrapped(message: Message, context: Context) -> Message:
        try:
            site = open_site(str(context.node_config["site"]))
            content = handler(site, m.arrays_of(message.content), m.config_of(message.content))
        except CofalError as error:
            code = m.REFUSED if isinstance(error, UserError) else m.CLIENT_RAISED
            return Message(Error(code, str(error)), reply_to=message)
        return Message(content, reply_to=message)

    return wrapped


@app.query("describe")
@answers
def describe(site: Site, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> RecordDict:
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


@app.query("embed")
@answers
def embed_images(site: Site, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> RecordDict:
    """Embed all images with the given (or the site's own frozen) encoder; share them or keep them here."""
    digest = str(config["digest"])
    if not site.has_embeddings(digest):
        encoder = _encoder(site, arrays, json.loads(str(config["model"])), digest)
        site.keep_embeddings(digest, embed(encoder, site.train.images, device=site.settings.device))
    embeddings = site.embeddings(digest)
    reply: dict[str, Any] = {"ids": list(site.train.ids), "known": list(site.settings.known_labels)}
    numbers = {m.EXAMPLES: len(site.train.ids), "dimension": embeddings.shape[1]}
    share = config["share"]
    if share == "none":
        return m.pack(config=reply, metrics=numbers)
    if share == "perturbed":
        rng = generator(int(config["seed"]), "perturb", site.name)
        embeddings = perturb(embeddings, float(config["epsilon"]), rng)
    elif share != "raw":
        raise UserError(f"cannot share embeddings as {share!r}; known: raw, perturbed, none")
    return m.pack(arrays={"embeddings": embeddings}, config=reply, metrics=numbers)


@app.query("pick")
@answers
def pick_alone(site: Site, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> RecordDict:
    """Per-client selection: the same selector on this site alone. `asked` holds the picks before this step."""
    taken = site.positions([*site.settings.known_labels, *config["asked"]])
    picks = select(
        [site.embeddings(str(config["digest"]))],
        [int(config["budget"])],
        method=str(config["method"]),
        coordination="per-client",
        labeled=[taken],
        seed=int(config["seed"]),
        **json.loads(str(config["params"])),
    )
    return m.pack(config={"ids": [site.train.ids[row] for row in picks.indices[0]]})


@app.query("assign")
@answers
def assign(site: Site, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> RecordDict:
    """Take note of this site's own picks: they wait for labels from now on."""
    site.ask(str(config["track"]), list(config["ids"]))
    rows, _ = site.labelled(str(config["track"]))
    return m.pack(metrics={"asked": len(config["ids"]), "labelled": len(rows)})


@app.train()
@answers
def train(site: Site, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> RecordDict:
    """One round of local training; the reply carries all of the model's state and the number of samples behind it."""
    job, track = str(config["job"]), str(config["track"])
    model = models.rebuild(json.loads(str(config["model"])), arrays)
    options: dict[str, Any] = {
        "epochs": int(config["local-epochs"]),
        "batch_size": int(config["batch-size"]),
        "lr": float(config["lr"]),
        "optimizer": str(config["optimizer"]),
        "momentum": float(config["momentum"]),
        "weight_decay": float(config["weight-decay"]),
        "proximal_mu": float(config.get("proximal-mu", 0.0)),
        "generator": torch_generator(int(config["seed"]), job, track, site.name, int(config["server-round"])),
    }
    _, size, _, channels = site.train.images.shape
    if job == "encoder":
        views = make_views(str(config["views"]), size, channels)
        examples = len(site.train.ids)
        loss = train_simclr(
            model,
            site.train.images,
            views=views,
            temperature=float(config["temperature"]),
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


@app.evaluate()
@answers
def evaluate(site: Site, arrays: dict[str, np.ndarray], config: dict[str, Any]) -> RecordDict:
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


@contextmanager
def one_thread() -> Iterator[None]:
    """A head on a few dozen labels is too small to share among cores: waking them costs more than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _encoder(site: Site, arrays: dict[str, np.ndarray], description: dict[str, Any], digest: str) -> Any:
    """The encoder the server describes: with the weights it sent, or the public one installed at this site."""
    if description["kind"] != "frozen":
        return models.rebuild(description, arrays)
    if not site.settings.frozen:
        raise UserError(f"site {site.name} has no public encoder; name one in its settings")
    if models.frozen_digest(site.settings.frozen) != digest:
        raise UserError(
            f"site {site.name} has another public encoder than the server; install the same file at every site"
        )
    return load_frozen(site.settings.frozen)
