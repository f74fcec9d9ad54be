"""`auto` where people label: from aggregates, with shares by worth, and the advice that a running federation gives."""

import json

import pytest
from labelling_sites import Deployment
from typer.testing import CliRunner

from cofal.cli import app
from cofal.errors import UserError
from cofal.federation.phases.advising import advice_file
from cofal.federation.site import open_site
from cofal.files import read_json
from cofal.rundir import MAIN

VEILED = ['selection.coordination=["auto"]', 'selection.sharing="aggregates"', 'selection.shares="auto"']


@pytest.fixture
def deployment(tmp_path, cache):
    return Deployment(tmp_path / "run", cache, *VEILED)


def test_selections_under_auto_show_no_embedding_and_tell_the_decision(deployment):
    deployment.order("pretrain")
    deployment.order("select", budget=9)
    deployment.order("select", budget=6)
    first, second = read_json(deployment.run.picks(MAIN))["steps"]
    assert (len(first["picks"]), len(second["picks"])) == (9, 6)
    assert first["auto"]["decision"] in ("central", "per-client", "mixed")
    assert first["auto"]["told"].startswith("overlap ")
    low, high = first["auto"]["overlap_interval"]
    assert low <= first["auto"]["overlap"] <= high or first["auto"]["overlap"] > 1
    kinds, decisions = set(), set()
    for folder in deployment.folders:
        site = open_site(folder)
        asked = site.asked(MAIN)
        due = sum(pick["client"] == site.name for step in (first, second) for pick in step["picks"])
        assert len(set(asked)) == len(asked) == due
        lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
        kinds |= {line["kind"] for line in lines}
        decisions |= {line["parameters"]["decision"] for line in lines if "decision" in line["parameters"]}
    assert "aggregate" in kinds
    assert not kinds & {"raw", "perturbed", "ids"}
    assert decisions == {first["auto"]["told"], second["auto"]["told"]}


def test_a_running_federation_gives_advice_from_aggregates(deployment):
    deployment.order("pretrain")
    deployment.phase("advise", budget=12)
    advice = read_json(advice_file(deployment.run))
    assert advice["clients"] == [open_site(folder).name for folder in deployment.folders]
    assert sum(advice["budgets"]) == 12
    value, low, high = advice["redundant_labels"]
    assert 0 <= low <= value <= high <= 12
    assert 0 <= advice["central_wins"] <= 1
    assert advice["recommended"] == {"method": "maxherding", "coordination": "auto", "delta": "auto"}
    assert any(line.startswith("How alike") for line in advice["told"])
    for folder in deployment.folders:
        kinds = {json.loads(line)["kind"] for line in (folder / "ledger.jsonl").read_text().splitlines()}
        assert not kinds & {"raw", "perturbed", "ids"}
        assert not open_site(folder).asked(MAIN)


def test_mistakes_of_the_command_are_told_in_one_line(tmp_path):
    for given, message in (
        (["--budget", "9"], "give the clients' embeddings with --client, or the folder of a running server"),
        (["--server", str(tmp_path), "--budget", "9", "--budget", "3"], "give one total"),
        (["--server", str(tmp_path), "--budget", "9"], str(tmp_path)),
    ):
        result = CliRunner().invoke(app, ["advise", *given])
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)
        assert "\n" not in str(result.exception)
    assert not list(tmp_path.iterdir())
