"""`cofal client status|export|import|backup` as a person runs them."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from cofal.cli import app
from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.federation.site import open_site
from cofal.federation.site_settings import SiteSettings, create_site
from cofal.labeling.store import LabelStore

IDS = ["a.png", "b.png", "[red]c\x1b[2J.png", "d.png"]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "north"
    ImageSet.of(np.zeros((4, 4, 4, 1), np.uint8), IDS, np.full(4, -1), ["no", "yes"]).save(folder / "images")
    create_site(folder, SiteSettings(name="north", images="images"))
    open_site(folder).ask("main", IDS)
    return folder


def run(*words):
    result = CliRunner().invoke(app, ["client", *map(str, words)], catch_exceptions=True)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_status_tells_how_far_it_is(folder):
    store = LabelStore.open(folder)
    store.label("a.png", "yes", "ann", 2.0)
    store.label("a.png", "no", "bob", 3.0)
    store.label("b.png", "no", "ann", 4.0)
    store.label("b.png", "no", "bob", 4.0)
    store.skip(IDS[2], "broken", "[b]cid")
    told = run("status", folder)
    for words in (
        "1 of 4 asked",
        "open      1",
        "1 (1 broken)",
        "disputed  1",
        "[b]cid",
        "agree on 1 of 2: kappa 0.00",
    ):
        assert words in told
    facts = json.loads(run("status", folder, "--json"))
    assert (facts["site"], facts["labelled"], facts["skipped"], facts["disputed"]) == ("north", 1, 1, 1)
    assert facts["agreement"]["pairs"][0]["kappa"] == 0.0


def test_export_label_and_import_again(folder, tmp_path):
    out = tmp_path / "work" / "tasks.json"
    assert "4 questions to label" in run("export", folder, "--format", "label-studio", "--out", out)
    assert (tmp_path / "work" / "tasks-config.xml").exists()
    run("export", folder, "--format", "csv", "--out", tmp_path / "todo.csv")
    filled = (tmp_path / "todo.csv").read_text().replace("a.png,", "a.png,yes").replace("b.png,,", "b.png,,unclear")
    (tmp_path / "done.csv").write_text(filled + "zebra,no\r\nd.png,maybe\r\n")
    told = run("import", folder, tmp_path / "done.csv", "--annotator", "Dr. Ito")
    for words in ("2 added", "1 ids were not asked", "'zebra'", "1 labels are no class", "'d.png': 'maybe'"):
        assert words in told
    outcome = json.loads(run("import", folder, tmp_path / "done.csv", "--annotator", "Dr. Ito", "--json"))
    assert (outcome["added"], outcome["unchanged"], outcome["unknown_ids"]) == (0, 2, ["zebra"])
    assert LabelStore.open(folder).labels() == {"a.png": "yes"}


def test_conflicts_are_listed_until_overwrite_settles_them(folder, tmp_path):
    LabelStore.open(folder).label(IDS[2], "yes", "ann")
    (tmp_path / "x.csv").write_text(f"id,label\n{IDS[2]},no\n")
    told = run("import", folder, tmp_path / "x.csv")
    assert "1 differ from the store" in told
    assert "\x1b[2J" not in told, "an id must not steer the terminal"
    assert "1 overwritten" in run("import", folder, tmp_path / "x.csv", "--overwrite")
    assert LabelStore.open(folder).labels() == {IDS[2]: "no"}


def test_a_backup_holds_the_labels(folder, tmp_path):
    LabelStore.open(folder).label("a.png", "yes", "ann")
    (tmp_path / "copy").mkdir()
    run("backup", folder, "--out", tmp_path / "copy" / "labels.sqlite")
    assert LabelStore.open(tmp_path / "copy").labels() == {"a.png": "yes"}


def test_mistakes_are_one_line(folder, tmp_path):
    with pytest.raises(UserError, match="known: label-studio, csv, coco"):
        run("export", folder, "--format", "voc", "--out", tmp_path / "x")
    with pytest.raises(UserError, match="no site at"):
        run("status", tmp_path / "nowhere")
    create_site(tmp_path / "played", SiteSettings(name="played", images="images", oracle=True))
    with pytest.raises(UserError, match="simulated site"):
        run("status", tmp_path / "played")
    assert not (tmp_path / "played" / "labels.sqlite").exists()
