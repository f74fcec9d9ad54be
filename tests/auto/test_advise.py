"""`cofal advise`: its forecasts move as the theory says, and the command tells them to people and machines."""

import json
from dataclasses import replace

import numpy as np
import pytest
from clients import ALIKE, TWO_AND_ONE, UNLIKE, kinds, look_alikes
from typer.testing import CliRunner

import cofal
from cofal.cli import app
from cofal.errors import UserError
from cofal.evaluation.advice import advise


def test_alike_clients_would_waste_labels_and_unlike_ones_would_not():
    rng = np.random.default_rng(0)
    alike, unlike = advise(kinds(rng, ALIKE), [6, 6, 6]), advise(kinds(rng, UNLIKE), [6, 6, 6])
    assert alike.redundant.value > 4
    assert unlike.redundant.value < 1
    assert alike.redundant.low <= alike.redundant.value <= alike.redundant.high
    assert alike.saved.value > unlike.saved.value
    assert alike.decision.central_wins > 0.85
    assert alike.decision.kind == "central"


def test_clients_that_only_look_alike_should_not_choose_as_one():
    advice = advise(look_alikes(np.random.default_rng(0), UNLIKE), [6, 6, 6])
    assert advice.decision.central_wins < 0.05
    assert advice.decision.kind == "per-client"
    assert any("of different kinds" in line for line in advice.in_words(["a", "b", "c"]))


@pytest.mark.parametrize(
    ("shares", "alone"),
    [(ALIKE, "all choose together"), (UNLIKE, "each client chooses alone"), (TWO_AND_ONE, "a and b choose together")],
)
def test_the_advice_says_what_auto_will_do(shares, alone):
    """By kind where it sees the embeddings; else as the switch decides."""
    embeddings = (kinds if shares is ALIKE else look_alikes)(np.random.default_rng(3), shares)
    advice = advise(embeddings, [6, 6, 6])
    does = cofal.select(embeddings, [6, 6, 6], coordination="auto").decision.kind
    assert advice.by_kind == advice.as_dict()["by_kind"] == (does == "by-kind")
    assert "of its own kind" in advice.in_words("abc")[-1 if advice.decision.certainty >= 0.9 else -2]
    unseen = replace(advice, radius=None)
    assert any(alone in line for line in unseen.in_words("abc"))


def test_one_total_budget_is_divided():
    advice = advise(look_alikes(np.random.default_rng(1), TWO_AND_ONE), 18)
    assert sum(advice.budgets) == 18
    assert advice.decision.groups == [[0, 1], [2]]


def test_one_client_needs_no_advice():
    with pytest.raises(UserError, match="at least two clients"):
        advise([np.random.default_rng(2).normal(size=(50, 4))], 5)


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, rows in zip("abc", look_alikes(np.random.default_rng(3), TWO_AND_ONE)):
        paths += ["--client", str(tmp_path / f"{name}.npy")]
        np.save(tmp_path / f"{name}.npy", rows)
    return paths


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_command_tells_people_and_draws(files, tmp_path, ending):
    figure = tmp_path / f"alike.{ending}"
    result = CliRunner().invoke(app, ["advise", *files, "--budget", "18", "--figure", str(figure)])
    assert result.exit_code == 0, result.output
    assert "How alike" in result.output
    assert "Only some clients are alike" in result.output
    assert "--coordination auto" in result.output
    assert figure.read_bytes()[:4] in (b"\x89PNG", b"<?xm")
    before = figure.read_bytes()
    CliRunner().invoke(app, ["advise", *files, "--budget", "18", "--figure", str(figure)])
    assert figure.read_bytes() == before


def test_the_command_tells_machines(files):
    result = CliRunner().invoke(app, ["advise", *files, "--budget", "6", "--budget", "6", "--budget", "6", "--json"])
    told = json.loads(result.output)
    assert told["budgets"] == [6, 6, 6]
    assert told["groups"] == [[0, 1], [2]]
    value, low, high = told["redundant_labels"]
    assert 0 <= low <= value <= high <= 18
    assert told["recommended"]["coordination"] == "auto"
    assert len(told["overlap_matrix"]) == 3


def test_mistakes_are_told_in_one_line(files, tmp_path):
    for more, message in (
        (["--budget", "18", "--figure", str(tmp_path / "alike.bmp")], "ending must be one of"),
        (["--budget", "7"] * 2, "2 budgets were given for 3 clients"),
        (["--budget", "9999"], "lower it"),
        (["--budget", "0"], "budget 0 asks for nothing"),
        (["--budget", "-4"], "budget -4 asks for nothing"),
        (["--budget", "0"] * 3, "asks for nothing"),
    ):
        result = CliRunner().invoke(app, ["advise", *files, *more])
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)
        assert "\n" not in str(result.exception)


def test_select_takes_auto_and_one_total(files, tmp_path):
    out = tmp_path / "picks.csv"
    result = CliRunner().invoke(
        app, ["select", *files, "--total", "12", "--coordination", "auto", "--out", str(out), "--json"]
    )
    told = json.loads(result.output)
    assert told["auto"]["decision"] == "by-kind"
    assert len(told["picks"]) == 12
    switched = ["--method", "random", "--coordination", "auto"]
    shown = CliRunner().invoke(app, ["select", *files, "--total", "12", *switched, "--out", str(out)])
    assert "some clients are alike; together: 0+1; the others alone" in shown.output
    refused = CliRunner().invoke(app, ["select", *files, "--out", str(out)])
    assert "--budget for each client, or one --total" in str(refused.exception)
