"""What a person is told of an attack study: a headline about the run itself, notes that are true to it, and figures."""

import json
import re

import numpy as np
import pytest
from matplotlib.transforms import Bbox

from cofal.config import load
from cofal.privacy.attacks.figures import against_leakage
from cofal.privacy.attacks.levels import AGGREGATES, NOTHING, levels, sent_by
from cofal.privacy.attacks.page import finding, markdown, price, write_study
from cofal.privacy.attacks.reconstruction import Likeness
from cofal.privacy.attacks.study import Row, Study

ONLY_AGGREGATES = 'selection.coordination=["aggregate", "per-client"]'
MASKED = [ONLY_AGGREGATES, "selection.secure_sums=true"]
FACTS = {
    "images attacked": 700,
    "outsiders": 300,
    "attacker's own images": 700,
    "candidates": 800,
    "dimensions": 64,
    "clients": 4,
    "method": "maxherding",
    "min_region": 5,
}  # fmt: skip


def study_of(*overrides, epsilons=(0.0, 0.6, 1.0), regions=()):
    """Figures made up for a run with these settings: noise of epsilon leaves 0.9 - epsilon / 2 to be traced."""
    rows, sent = [], sent_by(load("digits", list(overrides)))
    for level in levels(epsilons, sent.level):
        hidden = level.epsilon / 2 if level.kind == "noise" else 0.45
        traced = 0.9 - hidden if level.kind == "noise" else None
        found = {AGGREGATES: 0.05, NOTHING: 0.01}.get(level, 1 - hidden)
        near = Likeness(14.0, 0.8 - hidden, 0.5)
        rows.append(Row(level, 0.9 - hidden / 8, 1 - hidden, found, traced, near, accuracy_error=0.002))
    grid = [("original", np.zeros((3, 1, 8, 8))), ("raw", np.ones((3, 1, 8, 8)))]
    return Study(rows, list(regions), 1.0, 0.98, grid, sent, FACTS)


@pytest.mark.parametrize(
    ("overrides", "sent", "figure"),
    [
        ([], "raw embeddings", "traces 90 % of them"),
        (["selection.epsilon=0.6"], "embeddings with tangent noise of 0.6", "traces 60 % of them"),
        (["selection.epsilon=1", "selection.mechanism=vmf"], "embeddings with vmf noise of 1", "traces 40 % of them"),
        (["selection.epsilon=0.5"], "embeddings with tangent noise of 0.5", "traces 65 % of them"),
        (['selection.coordination=["central", "aggregate"]'], "raw embeddings, and aggregates", "traces 90 %"),
        ([ONLY_AGGREGATES], "aggregates", "recognises 5.0 % of the images"),
        (MASKED, "aggregates, with their sums under masks (secure sums)", "recognises 5.0 % of the images"),
        (['selection.coordination=["auto"]', "selection.sharing=aggregates"], "aggregates", "recognises 5.0 %"),
        (['selection.coordination=["per-client"]'], "nothing of their embeddings", "can only guess"),
        (['selection.methods=["random"]', ONLY_AGGREGATES], "nothing of their embeddings", "can only guess"),
    ],
)
def test_the_headline_says_first_what_the_run_itself_sent(overrides, sent, figure):
    headline = finding(study_of(*overrides)).replace("\u00a0", " ")
    assert headline.startswith(f"To choose, the clients of this run sent {sent}: an attacker {figure}")


def test_below_the_headline_stands_what_it_costs_and_what_pictures_show():
    told = price(study_of(*MASKED)).replace("\u00a0", " ")
    assert re.fullmatch(
        r"Accuracy is .* %, with raw embeddings .* %\. In pictures .* the class of .* % .* seen\.", told
    )
    assert re.fullmatch(r"Accuracy is .* %, with noise of 0\.6 .* %\.", price(study_of()).replace("\u00a0", " "))


def test_no_number_of_the_headline_parts_from_its_percent():
    for overrides in ([], ["selection.epsilon=0.6"], MASKED):
        for epsilons in ((0.0,), (0.6,), (0.0, 0.6)):
            headline = finding(study_of(*overrides, epsilons=epsilons))
            assert re.search(r"\d\u00a0%", headline)
            assert " %" not in headline


def test_whose_exchange_was_attacked_and_what_the_attacker_saw_of_it_is_told():
    masked = markdown(study_of(*MASKED), "cofal privacy attack")
    assert "of all that is summed the totals alone, as under the secure sums of this run." in masked
    assert "The row 'aggregates' is the exchange of MaxHerding, min_region 5; option 'method' takes probcover" in masked
    plain = markdown(study_of(ONLY_AGGREGATES, 'selection.methods=["typiclust"]'), "cofal privacy attack")
    assert "while this run chose by TypiClust" in plain
    assert "sees what a server sees in this run: all answers of each client, its own part of every sum" in plain
    assert "totals alone" not in plain
    assert "sees what a server sees without secure sums: all answers" in markdown(study_of(), "cofal privacy attack")


def test_releases_that_no_min_region_changes_are_one_row(tmp_path):
    same = {"asked": 10, "regions": 8, "smallest": 75, "distance": 0.5, "likelihood": 0.6}
    other = {**same, "asked": 30, "smallest": 23}
    releases = [{**each, "min_region": least} for each, least in ((same, 1), (same, 5), (same, 20), (other, 20))]
    study = study_of(regions=releases)
    text = markdown(study, "cofal privacy attack")
    assert "| 10 | 1, 5, 20 | 8 | 75 | 0.500 | 0.600 |" in text
    assert "| 30 | 20 | 8 | 23 | 0.500 | 0.600 |" in text
    assert "no region was smaller" in text
    assert "no region was smaller" not in markdown(study_of(regions=releases[-1:]), "cofal privacy attack")
    files = write_study(study, tmp_path, "cofal privacy attack")
    assert json.loads(files[0].read_text())["regions"] == releases
    assert "<td class=\"n\">1, 5, 20</td>" in files[-1].read_text()  # fmt: skip


def crowded(spread, error=0.0):
    """The same with all points so near to one another."""
    study, rng = study_of(), np.random.default_rng(3)
    for row in study.rows:
        shift = spread * rng.standard_normal(3)
        row.membership, row.accuracy, row.accuracy_error = 0.49 + shift[0], 0.9 + shift[1], error * rng.random()
        row.likeness = Likeness(14.0, 0.5 + shift[2], 0.5)
    return study


def stored():
    """Points of a run of the demo, where "nothing leaves" lies near much noise."""
    study = study_of()
    places = {"raw": (1.0, 0.924), "nothing": (0.5, 0.817), "aggregates": (0.623, 0.909)}
    places |= {"tangent 0.6": (0.568, 0.866), "vmf 0.6": (0.547, 0.881), "tangent 1": (0.481, 0.821)}
    for row, ssim in zip(study.rows, [0.79, 0.58, 0.58, 0.434, 0.437, 0.63, 0.35], strict=True):
        row.membership, row.accuracy = places.get(row.level.name, (0.513, 0.836))
        row.likeness, row.accuracy_error = Likeness(14.0, ssim, 0.5), 0.011 if row.level.epsilon == 1 else 0.003
    return study


@pytest.mark.parametrize(
    "study", [study_of(), stored(), crowded(0.1, 0.05), crowded(0.01, 0.02), crowded(0.001, 0.01), crowded(0.0)]
)
def test_every_point_of_the_plot_has_a_name_that_hides_no_other(study):
    for number, axes in enumerate(against_leakage(study).axes):
        boxes = [name.get_window_extent() for name in axes.texts]
        assert [name.get_text() for name in axes.texts] == [
            *("raw", "ε 0.6", "ε 0.6", "ε 1", "ε 1", "aggregates", "nothing leaves")
        ]
        assert not any(a.overlaps(b) for number, a in enumerate(boxes) for b in boxes[:number])
        for row in study.rows:
            x = row.likeness.ssim if number else row.membership
            ends = [(x, 100 * (row.accuracy + sign * row.accuracy_error)) for sign in (-1, 0, 1)]
            (x, low), (_, middle), (_, high) = axes.transData.transform(ends)
            drawn = Bbox([[x - 4, low], [x + 4, high]]), Bbox([[x - 10, middle - 10], [x + 10, middle + 10]])
            assert not any(box.overlaps(each) for box in boxes for each in drawn)
            assert axes.bbox.contains(x, low)


def test_marks_at_one_place_are_all_seen():
    figure = against_leakage(crowded(0.0))
    figure.canvas.draw()
    picture = np.asarray(figure.canvas.buffer_rgba())[::-1]
    x, y = figure.axes[0].transData.transform((0.49, 90)).round().astype(int)
    around = picture[y - 12 : y + 12, x - 12 : x + 12, :3].astype(int)  # names keep farther off
    for colour in ("#0a67b3", "#b8480a", "#00735f", "#6d7583"):
        wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
        assert np.count_nonzero(np.abs(around - wanted).max(-1) < 30) > 10


def test_the_plot_tells_where_its_axis_starts():
    assert "does not start at 0" in against_leakage(study_of()).axes[0].get_ylabel()
