"""The whole pipeline on the embedded engine: one run, its picks, its numbers, and what must not change them."""

import itertools
import json
import random

import numpy as np
import pytest

import cofal
from cofal.data.imageset import ImageSet
from cofal.federation import embedded
from cofal.federation.embedded import run_embedded
from cofal.federation.grid import InProcessGrid
from cofal.federation.site import open_site
from cofal.files import read_json
from cofal.learning.state import load_encoder
from cofal.rng import generator


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache):
    """One finished small run with all selectors, shared by the tests that only look at it."""
    from cofal.config import load
    from small_run import SMALL

    config = load("digits", [*SMALL, 'selection.methods=["maxherding", "probcover", "typiclust", "random"]'])
    return config, run_embedded(config, tmp_path_factory.mktemp("run") / "out", cache)


def picks_of(run):
    return {
        file.stem: [step["picks"] for step in read_json(file)["steps"]]
        for file in sorted(run.path.glob("picks/*.json"))
    }


def numbers_of(run):
    return [{key: value for key, value in cell.items() if key != "seconds"} for cell in read_json(run.results)]


def test_results_are_a_list_of_cells(finished):
    _config, run = finished
    cells = read_json(run.results)
    assert len(cells) == (3 * 2 + 1) * 2
    for cell in cells:
        assert {"method", "coordination", "budget", "seed", "accuracy"} <= set(cell)
        assert 0 <= cell["accuracy"] <= 1
    info = read_json(run.info)
    assert info["data"]["digest"]
    assert info["versions"]["torch"]
    assert [line["round"] for line in run.rounds()] == [1, 2, 3]
    assert [("knn" in line) for line in run.rounds()] == [False, True, True]


def test_every_track_keeps_its_budgets_and_repeats_nothing(finished):
    _config, run = finished
    for steps in picks_of(run).values():
        flat = list(itertools.chain.from_iterable(steps))
        assert [len(step) for step in steps] == [6, 6]
        assert [pick["rank"] for pick in flat] == list(range(12))
        assert len({pick["id"] for pick in flat}) == 12
        for site in ("site-0", "site-1", "site-2"):
            assert sum(pick["client"] == site for pick in flat) == 4


def test_picks_are_those_of_cofal_select_on_the_sites_embeddings(finished):
    """The message halves and the function of the library are one algorithm."""
    config, run = finished
    sites = [open_site(run.sites / f"site-{k}") for k in range(3)]
    digest = read_json(run.info)["encoder"]
    embeddings = [np.array(site.embeddings(digest)) for site in sites]
    for track, steps in picks_of(run).items():
        method, _, coordination = track.partition("-")
        asked: list[list[int]] = [[], [], []]
        for budget, step in zip((6, 12), steps):
            seed = int(generator(config.seed, "select", budget).integers(2**31))
            params = {"delta": "auto"} if method == "probcover" else {}
            chosen = cofal.select(
                embeddings, [2, 2, 2], method=method, coordination=coordination, labeled=asked, seed=seed,
                **params,
            )  # fmt: skip
            for k, site in enumerate(sites):
                ids = [pick["id"] for pick in step if pick["client"] == site.name]
                assert ids == [site.train.ids[row] for row in chosen.indices[k]], (track, budget)
                asked[k] += [int(row) for row in chosen.indices[k]]


def test_each_site_was_told_its_own_picks_only(finished):
    _config, run = finished
    for k in range(3):
        site = open_site(run.sites / f"site-{k}")
        own = set(site.train.ids)
        for file in (site.folder / "asked").glob("*.json"):
            assert set(read_json(file)) <= own


def test_the_same_seed_gives_the_same_bits_whatever_the_order_of_answers(finished, tmp_path, cache, monkeypatch):
    config, run = finished

    class Shuffled(InProcessGrid):
        def pull_messages(self, message_ids):
            return super().pull_messages(message_ids) if random.random() < 0.7 else []

    monkeypatch.setattr(embedded, "InProcessGrid", Shuffled)
    again = run_embedded(config, tmp_path / "again", cache)
    assert picks_of(again) == picks_of(run)
    assert numbers_of(again) == numbers_of(run)
    assert again.encoder.read_bytes() == run.encoder.read_bytes()


def test_another_seed_gives_other_picks(small, tmp_path, cache, finished):
    other = run_embedded(small("seed=1"), tmp_path / "other", cache)
    assert picks_of(other)["maxherding-central"] != picks_of(finished[1])["maxherding-central"]


def test_a_saved_encoder_skips_phase_one_and_gives_the_same_picks(small, tmp_path, cache, finished):
    _config, run = finished
    again = run_embedded(small(f"encoder.path={run.encoder}"), tmp_path / "again", cache)
    assert again.rounds() == []
    assert picks_of(again)["maxherding-central"] == picks_of(run)["maxherding-central"]


def test_a_frozen_public_encoder_stands_in_for_phase_one(small, tmp_path, cache):
    config = small("encoder.frozen=frozen_pixels:encode", 'selection.coordination=["per-client"]')
    run = run_embedded(config, tmp_path / "run", cache)
    assert run.rounds() == []
    assert read_json(run.info)["share"] == "none"
    assert not list((run.server / "embeddings").glob("*.npy"))


@pytest.mark.parametrize(
    "override",
    [
        "train.evaluate=clients",
        "train.model=image",
        "selection.epsilon=0.3",
        "selection.shares=proportional",
        "selection.shares=[1, 2, 0]",
        "pretrain.strategy=fedadam",
    ],
)
def test_variants_run_to_their_end(small, tmp_path, cache, override):
    run = run_embedded(
        small(override, "train.arch=resnet-tiny", "train.rounds=2", "pretrain.rounds=1"), tmp_path / "run", cache
    )
    assert len(read_json(run.results)) == 6


def test_noise_reaches_the_server_and_only_noise(small, tmp_path, cache):
    run = run_embedded(small("selection.epsilon=0.6", "train.rounds=1", "pretrain.rounds=1"), tmp_path / "run", cache)
    assert read_json(run.info)["share"] == "perturbed"
    site = open_site(run.sites / "site-0")
    raw = site.embeddings(read_json(run.info)["encoder"])
    sent = np.load(run.server / "embeddings" / "0.npy")
    assert abs(np.linalg.norm(sent - raw, axis=1).mean() - 0.6) < 0.05


def test_labels_known_from_the_start_are_not_asked_again_but_trained_on(small, tmp_path, cache, finished):
    _config, run = finished
    first = [pick["id"] for pick in picks_of(run)["maxherding-central"][0]]
    images = ImageSet.open(open_site(run.sites / "site-0").settings.images)
    known = tmp_path / "known.csv"
    label = dict(zip(images.ids, images.labels))
    known.write_text("id,label\n" + "".join(f"{sample},{images.classes[label[sample]]}\n" for sample in first))
    again = run_embedded(small(f"clients.labeled={known}"), tmp_path / "again", cache)
    for steps in picks_of(again).values():
        assert not {pick["id"] for step in steps for pick in step} & set(first)
    rows, _ = open_site(again.sites / "site-0").labelled("maxherding-central")
    assert len(rows) == 4 + sum(pick["client"] == "site-0" for pick in picks_of(run)["maxherding-central"][0])


def test_the_saved_encoder_is_the_one_that_embedded(finished):
    _config, run = finished
    from cofal.learning.embed import embed

    site = open_site(run.sites / "site-1")
    expected = site.embeddings(read_json(run.info)["encoder"])
    assert np.allclose(embed(load_encoder(run.encoder), site.train.images), expected, atol=1e-6)


def test_config_of_the_run_is_complete_and_parsable(finished):
    from cofal.config import load

    config, run = finished
    assert load(str(run.config)) == config
    json.dumps(read_json(run.info))
