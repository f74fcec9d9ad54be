"""`cofal privacy`: an attack on a small run, what a site has spent of its budget, and mistakes told in one line."""

import json
import sys

import pytest
from typer.testing import CliRunner

from cofal.cli import app, main
from cofal.config import load
from cofal.federation.embedded import run_embedded
from cofal.federation.site_settings import SiteSettings, create_site
from cofal.privacy.accountant import site_account
from cofal.privacy.policy import CountNoise, Policy
from small_run import SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    config = load("digits", [*SMALL, "selection.min_region=4"])
    return run_embedded(config, tmp_path_factory.mktemp("attacked") / "run", cache)


@pytest.fixture(scope="module")
def attacked(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("attacks")
    arguments = ["privacy", "attack", run.path, "--out", out, "--epsilons", "0,1", "--steps", "20", "--json"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return out, json.loads(done.stdout.splitlines()[-1])


def test_all_files_are_written_and_the_page_needs_no_other(attacked):
    out, found = attacked
    names = {"attack.json", "attack.md", "attack.html", "leakage.png", "pictures.png"}
    assert {file.name for file in out.iterdir()} == names
    page = (out / "attack.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page.replace("http://www.w3.org", "")
    assert json.loads((out / "attack.json").read_text()) == found
    assert "| aggregates |" in (out / "attack.md").read_text()
    assert "this run sent raw embeddings: an attacker traces" in (out / "attack.md").read_text()
    assert found["this run sent"] == {"level": "raw", "aggregates": False, "secure_sums": False}
    assert found["min_region"] == 4  # as the run has it


def test_the_figures_make_sense(attacked):
    _, found = attacked
    level = {each["name"]: each for each in found["levels"]}
    assert list(level) == ["raw", "tangent 1", "vmf 1", "aggregates", "nothing"]
    assert level["raw"]["reidentified"] > 0.9
    assert level["raw"]["membership_auc"] > 0.9
    assert level["tangent 1"]["reidentified"] < 0.5
    assert level["nothing"]["membership_auc"] == 0.5
    assert level["vmf 1"]["kappa"] > 0
    assert level["tangent 1"]["kappa"] is None
    assert found["reidentified with the seed known"] == pytest.approx(level["raw"]["reidentified"], abs=0.02)
    assert all(0 <= each["accuracy"] <= 1 for each in level.values())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--epsilons", "0,x"], "0,x"),
        (["--epsilons", "1.5"], "1.5"),
        (["--epsilons", ","], "names no level"),
        (["--method", "random"], "'random' has no aggregate form"),
        (["--method", "foo"], "unknown method 'foo'; did you mean"),
        (["--min-region", "0"], "min-region"),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, monkeypatch, capsys, options, word):
    arguments = ["cofal", "privacy", "attack", str(run.path), "--out", str(tmp_path / "out"), *options]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as exit_:
        main()
    err = capsys.readouterr().err
    assert exit_.value.code == 2
    assert err.count("\n") == 1
    assert word in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("below", ["", "x"])
def test_a_place_that_is_no_folder_is_told_before_the_work(run, tmp_path, monkeypatch, cofal, below):
    (tmp_path / "a.npy").write_bytes(b"kept")

    def worked(*_, **__):
        raise AssertionError("the run was opened")

    monkeypatch.setattr("cofal.privacy.attacks.scene.open_scene", worked)
    status, _, err = cofal("privacy", "attack", run.path, "--out", tmp_path / "a.npy" / below)
    assert (status, err.count("\n")) == (2, 1), err
    assert f"{tmp_path / 'a.npy'} is not a folder" in err
    assert (tmp_path / "a.npy").read_bytes() == b"kept"


def test_a_folder_without_a_run_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cofal", "privacy", "attack", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_site_shows_what_its_counts_have_spent(tmp_path):
    noise = CountNoise(mechanism="laplace", parameter=4.0, epsilon=1.0, delta=0.0)
    create_site(tmp_path / "north", SiteSettings(name="north", images="images", policy=Policy(count_noise=noise)))
    account = site_account(tmp_path / "north", noise)
    account.spend("laplace", 4.0, answer="first")
    account.spend("laplace", 4.0, times=2, answer="second")
    told = CliRunner().invoke(app, ["privacy", "spent", str(tmp_path / "north")], catch_exceptions=False)
    assert "Spent: epsilon 0.75 of 1, at delta 0" in told.stdout
    assert "Not covered: centroids and means of cells, sums" in told.stdout
    told = CliRunner().invoke(app, ["privacy", "spent", str(tmp_path / "north"), "--json"], catch_exceptions=False)
    found = json.loads(told.stdout)
    assert found["spent"] == pytest.approx(0.75)
    assert "centroids and means of cells" in found["not_covered"]
    assert found["noise"] == [{"mechanism": "laplace", "parameter": 4.0, "answers": 2, "times": 3}]
    create_site(tmp_path / "south", SiteSettings(name="south", images="images"))
    told = CliRunner().invoke(app, ["privacy", "spent", str(tmp_path / "south")], catch_exceptions=False)
    assert "count_noise in site.toml is not set" in told.stdout
