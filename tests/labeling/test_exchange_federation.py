"""Three sites of digits, 20 images each: labelled by hand or through Label Studio, the training uses exactly those."""

import json
import shutil

import numpy as np
import pytest

from cofal.config import load
from cofal.federation.client_app import app
from cofal.federation.embedded import prepare
from cofal.federation.grid import InProcessGrid
from cofal.federation.orders import Order
from cofal.federation.server_app import single_phase
from cofal.federation.site import open_site
from cofal.federation.site_settings import create_site, read_settings
from cofal.labeling.exchange.transfer import export_questions, import_answers
from cofal.labeling.oracle import truth_of
from cofal.rundir import MAIN, RunDir
from small_run import SMALL

SMALLER = [
    "data.limit=150",
    "data.test_limit=40",
    "pretrain.rounds=1",
    "pretrain.probe_every=0",
    "train.rounds=1",
    'selection.methods=["maxherding"]',
    'selection.coordination=["central"]',
]
SITES = ("site-0", "site-1", "site-2")


class Federation:
    """A deployment in one process: real phases, real messages, sites where people label."""

    def __init__(self, folder, config):
        self.run, self.config = RunDir(folder), config
        self.grid = InProcessGrid(
            app, {2 + number: {"site": str(folder / "sites" / name)} for number, name in enumerate(SITES)}
        )

    def phase(self, phase, number=1, budget=0):
        return single_phase(self.grid, self.config, self.run, 3, Order(phase, number, budget))

    @property
    def sites(self):
        return [open_site(self.run.sites / name) for name in SITES]


@pytest.fixture(scope="module")
def selected(tmp_path_factory, cache):
    """A federation after its first selection of 60 images."""
    folder = tmp_path_factory.mktemp("federation")
    config = load("digits", [*SMALL, *SMALLER])
    run = RunDir(folder)
    run.open(config)
    prepare(config, run, cache)
    for name in SITES:
        create_site(run.sites / name, read_settings(run.sites / name).model_copy(update={"oracle": False}))
    federation = Federation(folder, config)
    federation.phase("pretrain")
    federation.phase("select", budget=60)
    return federation


def copy_of(federation, folder):
    shutil.copytree(federation.run.path, folder)
    return Federation(folder, federation.config)


def weights(federation):
    """The classifiers as bytes."""
    found = [file.read_bytes() for file in sorted(federation.run.path.glob("models/**/*.safetensors"))]
    assert found
    return found


def by_hand(site, skip):
    truth = truth_of(site.train)
    for query in site.store.queries():
        if query.rank == skip:
            site.store.skip(query.id, "broken", "ann")
        else:
            site.store.label(query.id, truth(query.id), "ann")


def by_label_studio(site, skip, folder):
    """What a person does in Label Studio, on the files that it would see."""
    truth, tasks = truth_of(site.train), folder / f"{site.name}.json"
    export_questions(site.store, site.train, tasks, "label-studio")
    exported = []
    for task in json.loads(tasks.read_text()):
        chosen = ("skip", "broken") if task["data"]["rank"] == skip else ("label", truth(task["data"]["cofal_id"]))
        result = [{"from_name": chosen[0], "to_name": "image", "type": "choices", "value": {"choices": [chosen[1]]}}]
        exported.append({"id": 5, **task, "annotations": [{"id": 9, "completed_by": 1, "result": result}]})
    (folder / "project.json").write_text(json.dumps(exported))
    assert import_answers(site.store, folder / "project.json").added == len(exported) == 20


def test_training_uses_exactly_the_labels_however_they_were_given(selected, tmp_path):
    hand, studio, slipped = (copy_of(selected, tmp_path / name) for name in ("hand", "studio", "slipped"))
    assert [len(site.store.queries()) for site in hand.sites] == [20, 20, 20]
    for site in hand.sites:
        by_hand(site, skip=4)
    for site in studio.sites:
        by_label_studio(site, 4, tmp_path)
    for one, other in zip(hand.sites, studio.sites, strict=True):
        assert (one.store.labels(), one.store.skipped()) == (other.store.labels(), other.store.skipped())
        rows, labels = one.labelled(MAIN)
        assert [one.train.ids[row] for row in rows] == list(one.store.labels())
        assert np.array_equal(labels, one.train.labels[rows])
    for site in slipped.sites:
        by_hand(site, skip=4)
    store = slipped.sites[0].store
    sample, label = next(iter(store.labels().items()))
    store.label(sample, next(name for name in store.classes if name != label), "ann")
    cells = [federation.phase("train") for federation in (hand, studio, slipped)][:2]
    assert [(cell["budget"], cell["skipped"]) for cell in cells] == [(57, 3), (57, 3)]
    assert cells[0]["accuracy"] == cells[1]["accuracy"]
    by_page, by_studio, with_another = (weights(federation) for federation in (hand, studio, slipped))
    assert by_page == by_studio
    assert by_page != with_another, "another answer to one image is another model"


def test_the_next_selection_replaces_what_was_skipped(selected, tmp_path):
    federation = copy_of(selected, tmp_path / "next")
    for site in federation.sites:
        by_hand(site, skip=7)
    federation.phase("select", number=2, budget=6)
    asked = [site.store.progress(MAIN) for site in federation.sites]
    assert sum(each.asked - each.skipped for each in asked) == 66, "six more, and three in place of the skipped"
    assert sum(each.open for each in asked) == 9
    for site in federation.sites:
        assert {query.why["coordination"] for query in site.store.queries()} == {"central"}
        assert len(set(site.asked(MAIN))) == len(site.asked(MAIN))
