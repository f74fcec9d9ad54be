"""Malformed messages: a site answers each with an error or an answer, in its ledger; a server names the sender."""

import json
import os
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cofal.data.imageset import ImageSet
from cofal.errors import CofalError
from cofal.federation import messages as m
from cofal.federation import models
from cofal.federation.answers import Answers
from cofal.federation.client_app import app
from cofal.federation.fleet import Fleet, Member
from cofal.federation.grid import InProcessGrid
from cofal.federation.phases import aggregating, labelling
from cofal.federation.phases.embedding import _Store
from cofal.federation.site_settings import SiteSettings, create_site
from cofal.privacy.ledger import FILE, read_ledger
from cofal.privacy.policy import Kind, Policy

FROZEN = "frozen_pixels:encode"
DIGEST = models.frozen_digest(FROZEN)
KEYS = [
    "job", "track", "model", "seed", "digest", "share", "epsilon", "mechanism", "asked", "selection", "budget",
    "method", "params", "ids", "kind", "numbers", "session", "round", "rounds", "names", "keys", "senders",
    "shares", "survivors", "encoder", "local-epochs", "batch-size", "lr", "optimizer", "momentum", "weight-decay",
    "server-round", "views", "temperature",
]  # fmt: skip
HEAD = json.dumps(models.head_model(64, 4, 2))
# Values that lead deep into the handlers, among those that lead nowhere.
LIKELY = [
    DIGEST, "main", "maxherding", "probcover", "typiclust", "raw", "none", "perturbed", "tangent", "head",
    "encoder", "image", "sgd", "glyph", "{}", "[]", HEAD, '{"kind": "frozen"}',
    '{"kind": "head", "d": 99999999, "hidden": 99999999, "classes": 2}', '{"delta": 0.5}', '{"min_region": 5}',
    "centroids", "cover", "settle", "../../etc/passwd", "s1", 0, 1, 2, 3, -1, 10**12,
]  # fmt: skip
scalars = st.one_of(
    st.sampled_from(LIKELY),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.booleans(),
)
lists = st.one_of(
    st.lists(st.integers(-5, 5), max_size=4),
    st.lists(st.text(max_size=5), max_size=4),
    st.lists(st.sampled_from([f"scan-{row}" for row in range(14)]), max_size=4),
    st.lists(st.binary(max_size=40), max_size=4),
)
configs = st.dictionaries(st.sampled_from(KEYS), st.one_of(scalars, lists), max_size=len(KEYS))
sound = st.builds(
    lambda shape, kind, value: Array(np.full(shape, value).astype(kind)),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(["float32", "float64", "int64", "uint8"]),
    st.sampled_from([0, 1, -1, 1e30]),
)
unsound = st.builds(
    Array,
    st.sampled_from(["float32", "object", "<U9", "nonsense", ""]),
    st.lists(st.integers(-1, 10**12), max_size=3).map(tuple),
    st.sampled_from(["numpy.ndarray", "pickle"]),
    st.binary(max_size=200),
)
names = st.sampled_from(["arrays", "weight", "embeddings", "masked", "hidden.weight", "centers"])
arrays = st.dictionaries(names, st.one_of(sound, unsound), max_size=4)
metrics = st.dictionaries(
    st.sampled_from([m.EXAMPLES, "loss", "dimension", "asked", "labelled", "skipped", "correct"]),
    st.one_of(st.integers(-(2**40), 2**40), st.floats(), st.lists(st.integers(0, 3), max_size=2)),
    max_size=6,
)


def records(config, array, metric):
    content = RecordDict()
    if config is not None:
        content[m.CONFIG] = ConfigRecord(config)
    if array is not None:
        content[m.ARRAYS] = ArrayRecord(array)
    if metric is not None:
        content[m.METRICS] = MetricRecord(metric)
    return content


# Sound requests, of which some values are replaced or left out: these get deep into the handlers.
TRAINING = {
    "job": "head", "track": "main", "model": HEAD, "seed": 1, "digest": DIGEST, "local-epochs": 1, "batch-size": 4,
    "lr": 0.1, "optimizer": "sgd", "momentum": 0.9, "weight-decay": 0.0, "server-round": 1, "views": "glyph",
}  # fmt: skip
SOUND = {
    m.DESCRIBE: {},
    m.EMBED: {
        "digest": DIGEST, "model": '{"kind": "frozen"}', "share": "raw", "track": "main", "asked": 1, "selection": 1,
    },
    m.PICK: {
        "digest": DIGEST, "track": "main", "asked": 1, "budget": 2, "method": "maxherding", "seed": 1, "params": "{}",
    },
    m.ASSIGN: {"track": "main", "ids": ["scan-1", "scan-2"], "asked": 0, "selection": 1, "method": "maxherding"},
    m.PROGRESS: {"track": "main"},
    m.AGGREGATE: {
        "digest": DIGEST, "track": "main", "asked": 0, "budget": 2, "method": "maxherding", "kind": "cells",
        "numbers": '{"most": 4, "min_region": 5, "fine": 0}',
    },
    m.SUM_KEYS: {"session": "s1"},
    m.SUM_SHARES: {"session": "s1", "names": ["north", "b", "c"], "keys": [b"k" * 32] * 3, "rounds": 4},
    m.SUM_UNMASK: {"session": "s1", "round": 0, "survivors": ["north"], "senders": ["b"], "shares": [b"x"]},
    m.SUM_CLOSE: {"session": "s1"},
    m.TRAIN: TRAINING,
    m.EVALUATE: {"model": HEAD, "encoder": '{"kind": "frozen"}', "digest": DIGEST},
}  # fmt: skip
WEIGHTS = {
    name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in
    {"0.weight": (4, 64), "0.bias": (4,), "2.weight": (2, 4), "2.bias": (2,)}.items()
}  # fmt: skip


def spoiled(kind):
    """Requests of a kind with up to three values changed or left out, with weights or other arrays."""

    def build(changes, dropped, array):
        config = {key: value for key, value in {**SOUND[kind], **changes}.items() if key not in dropped}
        return records(config, array, None)

    keys = sorted(SOUND[kind]) or KEYS
    return st.builds(
        build,
        st.dictionaries(st.sampled_from(keys), st.one_of(scalars, lists), max_size=3),
        st.sets(st.sampled_from(keys), max_size=1),
        st.one_of(st.none(), st.just(WEIGHTS), arrays),
    )


contents = st.builds(
    records, st.one_of(st.none(), configs), st.one_of(st.none(), arrays), st.one_of(st.none(), metrics)
)
fuzzed = settings(
    max_examples=int(os.environ.get("COFAL_FUZZ_EXAMPLES", "30")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "north"
    pixels = np.random.default_rng(0).integers(0, 255, (14, 8, 8, 1)).astype(np.uint8)
    images = ImageSet.of(pixels, [f"scan-{row}" for row in range(14)], np.arange(14) % 2, ["no", "yes"])
    images.save(folder / "images")
    policy = Policy(allow=[Kind.RAW, Kind.MODEL], reproducible_noise=True)
    create_site(
        folder,
        SiteSettings(
            name="north", images="images", test_images="images", frozen=FROZEN, policy=policy, ledger_sync=False
        ),
    )
    grid = InProcessGrid(app, {2: {"site": str(folder)}})
    embed = {"digest": DIGEST, "model": '{"kind": "frozen"}', "share": "none"}
    grid.send_and_receive([Message(m.pack(config=embed), dst_node_id=2, message_type=m.EMBED)])
    return folder, grid


def test_every_kind_of_message_is_fuzzed():
    assert SOUND.keys() == app.handlers.keys()


@pytest.mark.parametrize("kind", sorted(app.handlers))
@fuzzed
@given(data=st.data())
def test_a_site_answers_every_message_and_its_ledger_has_it(kind, site, data):
    content = data.draw(st.one_of(spoiled(kind), contents))
    folder, grid = site
    before = len((folder / FILE).read_bytes().splitlines())
    began = time.monotonic()
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=2, message_type=kind)])
    assert time.monotonic() - began < 60
    lines = (folder / FILE).read_bytes().splitlines()
    assert len(lines) == before + 1
    last = json.loads(lines[-1])
    if reply.has_error():
        assert "\n" not in reply.error.reason
        assert len(reply.error.reason) < 1000
        assert (last["bytes"], last["fields"]) == (0, [])
    else:
        assert last["bytes"] == m.content_bytes(reply)
        assert m.kind_of(reply) == last["kind"]


def test_the_ledger_of_a_fuzzed_site_is_whole(site):
    assert read_ledger(site[0] / FILE).broken == ""


SENT = {"weight": np.zeros((2, 3), dtype=np.float32), "hidden.weight": np.zeros(1, dtype=np.float32)}


def readers(folder):
    return {
        "train": Answers(SENT, {"north": 14}, folder).take,
        "embed": _Store(folder / "raw", {"share": "raw"}, {"north": 14}).read,
        "keep": _Store(folder / "none", {"share": "none"}, {"north": 14}).read,
        "counts": labelling._counts,
        "aggregate": aggregating._numbers,
        "masked": aggregating._masked,
        "shares": aggregating._shares,
    }


@pytest.mark.parametrize("which", ["train", "embed", "keep", "counts", "aggregate", "masked", "shares"])
@fuzzed
@given(content=contents)
def test_whatever_a_site_answers_the_server_goes_on_or_names_it(which, tmp_path, content):
    client = ClientApp()
    client.query("any")(lambda message, context: Message(content, reply_to=message))
    fleet = Fleet(
        InProcessGrid(client, {2: {}}),
        timeout=5,
        members={"north": Member("north", 2, 14, 0, 0, ["no", "yes"], (8, 8, 1))},
    )
    asked = {"north": m.pack(config={})}
    fleet.ask("query.any", asked, readers(tmp_path)[which], at_least=0)
    if fleet.missed:
        assert fleet.missed["north"].startswith("its answer is rejected: ")
        assert "\n" not in fleet.missed["north"]
        with pytest.raises(CofalError, match="1 of 1 sites failed: north: "):
            fleet.ask("query.any", asked, readers(tmp_path)[which])


@fuzzed
@given(content=contents)
def test_a_stranger_s_description_is_a_member_or_a_reason(content):
    client = ClientApp()
    client.query("describe")(lambda message, context: Message(content, reply_to=message))
    with pytest.raises(CofalError, match="node 2"):
        Fleet.gather(InProcessGrid(client, {2: {}}), expected=1, timeout=1)
