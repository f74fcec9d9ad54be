"""A deployed site behind the real ClientApp: people answer, skipped samples leave the pool, only counts are told."""

import json

import numpy as np
import pytest
from flwr.app import Message

from cofal import select
from cofal.data.imageset import ImageSet
from cofal.federation import messages as m
from cofal.federation.client_app import app
from cofal.federation.grid import InProcessGrid
from cofal.federation.site import open_site
from cofal.federation.site_settings import SiteSettings, create_site
from cofal.labeling.reasons import Reasons, explain
from cofal.labeling.schema import FILE
from cofal.labeling.store import LabelStore
from cofal.privacy.policy import Kind, Policy
from cofal.selection.aggregate.exchange import Consortium
from cofal.selection.aggregate.select import aggregate_method

DIGEST, CLASSES, COUNT = "ab12", ["no", "yes"], 40
RAW = {"digest": DIGEST, "model": "{}", "share": "raw", "epsilon": 0.0}
EVERYTHING = Policy(allow=list(Kind), min_region=1)


class Client:
    """A site with made-up embeddings behind the app."""

    def __init__(self, folder, *, oracle=False, known=(), policy=EVERYTHING):
        rng = np.random.default_rng(3)
        pixels = rng.integers(0, 255, (COUNT, 8, 8, 1)).astype(np.uint8)
        ids = [f"scan-{row}" for row in range(COUNT)]
        labels = np.where(np.isin(ids, list(known)) | oracle, np.arange(COUNT) % 2, -1)
        ImageSet.of(pixels, ids, labels, CLASSES).save(folder / "images")
        settings = SiteSettings(name="north", images="images", known_labels=list(known), oracle=oracle, policy=policy)
        create_site(folder, settings)
        self.folder, self.ids, self.site = folder, ids, open_site(folder)
        rows = rng.normal(size=(COUNT, 6))
        self.rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        self.site.keep_embeddings(DIGEST, self.rows)
        self.grid = InProcessGrid(app, {2: {"site": str(folder)}})

    def ask(self, kind, config, arrays=None):
        content = m.pack(config=config, arrays=arrays)
        reply = self.grid.send_and_receive([Message(content, dst_node_id=2, message_type=kind)])[0]
        assert not reply.has_error(), reply.error.reason
        return reply.content

    @property
    def store(self):
        return LabelStore.open(self.folder)

    def counts(self):
        return m.metrics_of(self.ask(m.PROGRESS, {"track": "main"}))

    def assign(self, ids, **more):
        return m.metrics_of(self.ask(m.ASSIGN, {"track": "main", "ids": ids, **more}))


@pytest.fixture
def north(tmp_path):
    return Client(tmp_path / "north")


def test_questions_wait_in_the_store_and_only_counts_are_told(north):
    told = {"method": "probcover", "coordination": "central", "digest": DIGEST, "delta": 0.7, "selection": 4}
    assert north.assign(["scan-3", "scan-1"], **told) == {"asked": 2, "labelled": 0, "skipped": 0}
    assert [(query.id, query.selection, query.why) for query in north.store.queries()] == [
        ("scan-3", "4", told), ("scan-1", "4", told),
    ]  # fmt: skip
    north.store.label("scan-1", "yes", "ann")
    north.store.skip("scan-3", "broken", "ann")
    reply = north.ask(m.PROGRESS, {"track": "main"})
    assert m.metrics_of(reply) == {"asked": 2, "labelled": 1, "skipped": 1}
    assert (m.config_of(reply), m.arrays_of(reply)) == ({}, {})


def test_training_uses_exactly_the_final_labels(tmp_path):
    north = Client(tmp_path, known=["scan-9", "scan-8"])
    north.assign(["scan-3", "scan-1", "scan-5", "scan-6"])
    north.store.label("scan-1", "yes", "ann")
    north.store.label("scan-3", "no", "ann")
    north.store.label("scan-5", "yes", "ann")
    north.store.label("scan-5", "no", "bob")
    north.store.skip("scan-6", "unclear", "ann")
    rows, labels = north.site.labelled("main")
    assert dict(zip(rows.tolist(), labels.tolist(), strict=True)) == {9: 1, 8: 0, 3: 0, 1: 1}
    north.store.resolve("scan-5", "no", "cid")
    assert 5 in north.site.labelled("main")[0].tolist()
    assert north.counts() == {"asked": 4, "labelled": 3, "skipped": 1}


def test_a_simulated_site_has_no_store_and_its_data_answers(tmp_path):
    south = Client(tmp_path, oracle=True)
    assert south.assign(["scan-3", "scan-1"]) == {"asked": 2, "labelled": 2, "skipped": 0}
    assert south.site.labelled("main")[1].tolist() == [1, 1]
    assert south.site.pool().tolist() == list(range(COUNT))
    assert not (tmp_path / FILE).exists()
    assert (tmp_path / "asked" / "main.json").exists()


# --- skipped samples leave the pool


def skip(client, *ids):
    for sample in ids:
        client.store.skip(sample, "broken", "ann")


def test_shared_embeddings_leave_skipped_samples_out(north):
    north.assign(["scan-3", "scan-1", "scan-5"])
    skip(north, "scan-3")
    reply = north.ask(m.EMBED, {**RAW, "track": "main", "asked": 3})
    said = m.config_of(reply)
    kept = [sample for sample in north.ids if sample != "scan-3"]
    assert (said["ids"], said["known"]) == (kept, ["scan-1", "scan-5"])
    assert np.array_equal(m.arrays_of(reply)["embeddings"], np.delete(north.rows, 3, axis=0))
    assert m.metrics_of(reply)[m.EXAMPLES] == COUNT - 1


def test_a_second_release_without_a_skipped_sample_has_the_noise_of_the_first(tmp_path):
    north = Client(tmp_path, policy=Policy(allow=["perturbed"], min_epsilon=0.5))
    config = {**RAW, "share": "perturbed", "epsilon": 0.6}
    first = m.arrays_of(north.ask(m.EMBED, config))["embeddings"]
    north.assign(["scan-3", "scan-1"])
    skip(north, "scan-3")
    assert np.array_equal(m.arrays_of(north.ask(m.EMBED, config))["embeddings"], np.delete(first, 3, axis=0))


@pytest.mark.parametrize("method", ["maxherding", "probcover", "typiclust", "random"])
def test_picks_of_the_site_alone_are_those_of_the_pool_without_the_skipped(north, method):
    asked = ["scan-3", "scan-1", "scan-30"]
    north.assign(asked)
    skip(north, "scan-3", "scan-30")
    params = {"delta": 0.6} if method == "probcover" else {}
    config = {
        "track": "main", "asked": 3, "budget": 5, "digest": DIGEST, "method": method, "seed": 8,
        "params": json.dumps(params),
    }  # fmt: skip
    picked = m.config_of(north.ask(m.PICK, config))["ids"]
    kept = [row for row in range(COUNT) if row not in (3, 30)]
    alone = select([north.rows[kept]], [5], method=method, coordination="per-client", labeled=[[1]], seed=8, **params)
    assert picked == [north.ids[kept[row]] for row in alone.indices[0]]
    assert not set(picked) & set(asked)


def aggregate(client, number, asked, *, between=lambda: None, skipped=0):
    """Drive one aggregate selection of 4 picks at one site; `between` happens after the first answer."""
    known = Consortium([COUNT - skipped], [asked - skipped], [4], 6)
    talk = aggregate_method("probcover").coordinate(known, np.random.default_rng(0), delta=0.6, min_region=1)
    answers = None
    while True:
        try:
            question = talk.send(answers)
        except StopIteration:
            return client.site.asked("main")[asked:]
        config = {
            "track": "main", "digest": DIGEST, "method": "probcover", "asked": asked, "budget": 4, "selection": number,
            "kind": question.kind, "numbers": json.dumps(dict(question.numbers)),
        }  # fmt: skip
        got = m.arrays_of(client.ask(m.AGGREGATE, config, question.told(0)))
        answers = got if question.summed else [got]
        between()
        between = lambda: None  # noqa: E731


def test_a_skip_in_the_middle_of_an_aggregate_selection_counts_from_the_next_one(north, tmp_path):
    picks = aggregate(north, 1, 0)
    south = Client(tmp_path / "south")
    assert aggregate(south, 1, 0) == picks
    skip(north, picks[0])
    expected = aggregate(north, 2, 4, skipped=1)
    skip(south, picks[0])
    disturbed = aggregate(south, 2, 4, skipped=1, between=lambda: skip(south, picks[1]))
    assert disturbed == expected
    assert not set(expected) & set(picks)
    assert south.site.pool("main 2").tolist() == [row for row in range(COUNT) if south.ids[row] != picks[0]]
    assert len(south.site.pool("main 3")) == COUNT - 2
    assert {query.why["coordination"] for query in south.store.queries()} == {"aggregate"}
    assert [query.selection for query in south.store.queries()] == ["1"] * 4 + ["2"] * 4


# --- reasons


def test_regions_and_neighbours_against_plain_distances(north):
    asked = ["scan-3", "scan-1", "scan-5"]
    north.assign(asked, method="maxherding", coordination="central")  # the last encoder is meant
    north.store.label("scan-1", "yes", "ann")
    north.store.label("scan-5", "no", "ann")
    distance = np.linalg.norm(north.rows[:, None] - north.rows[None], axis=2)
    places = [north.ids.index(sample) for sample in asked]
    nearest = distance[:, places].argmin(axis=1)
    for place, sample in enumerate(asked):
        told = explain(north.site, north.store, north.store.query(sample), "ann")
        assert told.region == (nearest == place).sum()
        others = sorted((distance[places[place], row], north.ids[row]) for row in (1, 5) if row != places[place])
        assert [(each.id, each.label) for each in told.neighbours] == [
            (other, {"scan-1": "yes", "scan-5": "no"}[other]) for _, other in others
        ]
        assert told.neighbours[0].distance == pytest.approx(others[0][0], abs=1e-3)
        assert told.sentences[0].startswith(f"Typical of a region of {told.region} ")
    ball = Reasons(north.ids, north.rows)
    north.assign([*asked, "scan-7"], method="probcover", digest=DIGEST, delta=0.9)
    query = north.store.query("scan-7")
    assert ball.of(query, asked, {}).region == (distance[7] <= 0.9).sum()


def test_without_embeddings_a_reason_says_how_the_image_was_chosen(north):
    north.assign(["scan-3"], method="random", coordination="per-client", digest="ee")
    told = explain(north.site, north.store, north.store.query("scan-3"), "ann")
    assert (told.region, told.neighbours, told.sentences) == (
        None, [], ["Number 1 of selection 1's list, drawn at random."],
    )  # fmt: skip
