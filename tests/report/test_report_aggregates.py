"""Reports of selections from aggregates: the map has what the server heard, centroids, and no image's name."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from cofal.config import load
from cofal.federation.embedded import run_embedded
from cofal.federation.phases.overheard import read_heard
from cofal.federation.site import open_site
from cofal.report.account import traffic
from cofal.report.facts import Facts
from cofal.report.page import render
from small_run import SMALL

METHODS = ("maxherding", "probcover", "typiclust")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache):
    overrides = [
        "data.limit=300",
        "pretrain.rounds=1",
        "pretrain.probe_every=0",
        "train.rounds=1",
        f"selection.methods={json.dumps(METHODS)}",
        'selection.coordination=["aggregate"]',
    ]
    return run_embedded(load("digits", [*SMALL, *overrides]), tmp_path_factory.mktemp("heard") / "run", cache)


@pytest.mark.parametrize("method", METHODS)
def test_a_pick_lies_where_the_server_sought_it(finished, method):
    """The direction kept for a pick is the one its site took its nearest free sample of."""
    steps = read_heard(finished, f"{method}-aggregate")
    assert [step.picks[0][0] for step in steps] == [0, 6]
    found = [pick for step in steps for pick in step.picks]
    assert [rank for rank, _, _ in found] == list(range(12))
    near = []
    for name in {site for _, site, _ in found}:
        site = open_site(finished.sites / name)
        (file,) = (site.folder / "embeddings").glob("*.npy")
        rows = np.load(file)
        order = site.asked(f"{method}-aggregate")
        mine = [direction for _, owner, direction in found if owner == name]
        assert len(order) == len(mine)
        for sample, direction in zip(order, mine, strict=True):
            if direction is not None:
                cosines = rows @ (direction / np.linalg.norm(direction))
                row = site.positions([sample])[0]
                near.append(float((cosines > cosines[row]).mean()))
    assert len(near) >= 6
    assert np.median(near) < 0.1, "of all samples of its site, hardly any is nearer"


def test_centroids_stand_for_enough_images(finished):
    least = load("digits", []).selection.min_region
    for step in read_heard(finished, "maxherding-aggregate"):
        for name, centroids in step.centroids.items():
            assert len(centroids) == len(step.counts[name])
            assert min(step.counts[name]) >= least


def test_the_map_names_no_image(finished):
    text = render(Facts(finished))
    section = re.search(r'<section id="map".*?</section>', text, re.S).group()
    assert "Each dot is a centroid" in section
    assert "beside counts and distances it is all that the server saw of them" in section
    _, marked, alone = Facts(finished).heard
    told = f"{alone} of the {alone + sum(map(len, marked.values()))} picks of all selectors and budgets have no mark"
    assert (told in section) == (alone > 0)
    assert alone + sum(map(len, marked.values())) == 3 * 12
    assert "which image, its site knows" in section
    assert len(re.findall(r'class="pick ', section)) >= 18
    ids = open_site(next(finished.sites.glob("site-*"))).train.ids
    assert not any(sample in section for sample in ids)
    assert 'id="redundancy"' not in text
    assert "the clients kept theirs" in text


@pytest.mark.parametrize("kinds", [["aggregate"], ["aggregate", "per-client"]])
def test_names_of_picks_are_said_to_have_left_where_clients_chose_alone(written_run, kinds):
    accuracies = {("maxherding", kind): [0.5, 0.6] for kind in kinds}
    run = written_run(methods=("maxherding",), kinds=tuple(kinds), accuracies=accuracies, share="none")
    left = traffic(Facts(run))["left"]
    assert ("names of picked images" in left) == ("per-client" in kinds)
