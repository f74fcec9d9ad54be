"""The headline is true to the numbers, also when coordination lost; the figures beside it too."""

from __future__ import annotations

import pytest

from cofal.report.facts import Facts
from cofal.report.finding import cheaper, find, gap, uncertainty

PAIR = [("maxherding", "central"), ("maxherding", "per-client")]


def headline(run) -> str:
    return find(Facts(run)).headline.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("together", "alone", "expected"),
    [
        ([0.8], [0.64], "With 4 labels, choosing together reached 80.0 %; choosing alone 64.0 %"),
        (
            [0.5],
            [0.6],
            "With 4 labels, choosing together reached 50.0 %; choosing alone 60.0 %: coordination did not pay here",
        ),
        (
            [0.5],
            [0.50001],
            "With 4 labels, choosing together reached 50.0 %; choosing alone 50.0 %: coordination made no difference",
        ),
    ],
)
def test_one_budget(written_run, together, alone, expected):
    run = written_run(budgets=(4,), accuracies=dict(zip(PAIR, (together, alone), strict=True)))
    assert headline(run) == expected


def test_the_mean_over_budgets_is_weighted_by_their_distance(written_run):
    run = written_run(budgets=(2, 4, 8), accuracies=dict(zip(PAIR, ([0.5, 0.7, 0.7], [0.4, 0.4, 0.4]), strict=True)))
    assert headline(run) == "With 2 to 8 labels, choosing together reached 66.7 % on average; choosing alone 40.0 %"


def test_several_selectors_the_strongest_is_told_and_the_others_counted(written_run):
    accuracies = {
        ("maxherding", "central"): [0.5], ("maxherding", "per-client"): [0.3],
        ("probcover", "central"): [0.7], ("probcover", "per-client"): [0.8],
    }  # fmt: skip
    run = written_run(methods=("maxherding", "probcover", "random"), budgets=(4,), accuracies=accuracies)
    found = find(Facts(run))
    assert "choosing together reached 70.0" in found.headline
    assert found.headline.endswith("did not pay here")
    assert "ProbCover, the best selector over both ways" in found.lead[0]
    assert found.lead[1] == "Choosing together was ahead with 1 of 2 selectors."


def test_without_a_pair_the_best_track_is_held_against_random(written_run):
    run = written_run(kinds=("per-client",), budgets=(4,), accuracies={PAIR[1]: [0.3], ("random", "per-client"): [0.4]})
    assert (
        headline(run)
        == "With 4 labels, choosing alone reached 30.0 %; picking at random 40.0 %: choosing did not pay here"
    )


def test_random_alone(written_run):
    assert headline(written_run(methods=("random",), budgets=(4,))) == "With 4 labels, picking at random reached 40.0 %"


def test_labels_saved_are_counted_at_measured_budgets_only():
    assert cheaper([10, 20, 40], [0.5, 0.8, 0.9], [0.4, 0.6, 0.7]) == (20, 40)
    assert cheaper([10, 20, 40], [0.5, 0.6, 0.9], [0.4, 0.6, 0.7]) is None
    assert cheaper([10, 20, 40], [0.4, 0.6, 0.7], [0.5, 0.8, 0.9]) is None


def test_no_gap_without_area():
    assert gap([10, 20], [0.0, 0.0], [0.1, 0.1]) is None
    assert gap([10], [0.8], [0.6]) == pytest.approx(25.0)


def test_uncertainty_shrinks_with_the_test_set():
    assert uncertainty(0.5, 100) == pytest.approx(0.098, abs=1e-3)
    assert uncertainty(0.5, 400) == pytest.approx(0.049, abs=1e-3)
    assert uncertainty(1.0, 100) == 0.0
