"""A finished run's classifier on new images: predictions agree with the run's accuracy, and so does the ONNX export."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from cofal.cli import app
from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.federation.embedded import run_embedded
from cofal.files import read_json
from cofal.inference import load_predictor


@pytest.fixture(scope="module")
def run(tmp_path_factory, cache):
    from cofal.config import load
    from small_run import SMALL

    return run_embedded(load("digits", SMALL), tmp_path_factory.mktemp("model") / "run", cache)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def accuracy_of(run, track):
    return next(c["accuracy"] for c in read_json(run.results) if c["track"] == track and c["budget"] == 12)


def test_predictions_reach_the_accuracy_of_the_run(run, tmp_path):
    test = ImageSet.open(run.server / "test")
    np.save(tmp_path / "test.npy", np.array(test.images))
    done = call(
        "predict", run.path, tmp_path / "test.npy", "--track", "maxherding-central", "--out", tmp_path / "p.csv"
    )
    assert done.exit_code == 0
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["image", "label", "probability"]
    right = [row["label"] == test.classes[label] for row, label in zip(rows, test.labels, strict=True)]
    assert np.mean(right) == pytest.approx(accuracy_of(run, "maxherding-central"))


def test_image_files_of_any_size_and_colour_are_taken(run, tmp_path):
    folder = tmp_path / "new images"
    folder.mkdir()
    for name, mode, size in (("a.png", "L", (8, 8)), ("b.jpg", "RGB", (40, 30)), ("c.PNG", "RGBA", (9, 12))):
        Image.new(mode, size, 128 if mode == "L" else tuple([128] * len(mode))).save(folder / name)
    done = call("predict", run.path, folder, "--json")
    assert done.exit_code == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["image"].rpartition("/")[2] for line in lines] == ["a.png", "b.jpg", "c.PNG"]
    assert all(0 < line["probability"] <= 1 for line in lines)


def test_the_default_track_is_the_most_accurate_one(run):
    finals = {cell["track"]: cell["accuracy"] for cell in read_json(run.results) if cell["budget"] == 12}
    assert finals[load_predictor(run.path).track] == max(finals.values())


def test_export_gives_the_same_probabilities(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert call("export", run.path, "--track", "maxherding-central", "--out", tmp_path / "m.onnx").exit_code == 0
    images = np.array(ImageSet.open(run.server / "test").images[:20])
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (theirs,) = session.run(None, {session.get_inputs()[0].name: images})
    ours = load_predictor(run.path, "maxherding-central").probabilities(images)
    assert np.allclose(theirs, ours, atol=1e-4)


@pytest.mark.parametrize("name", ["broken.png", "text.npy", "wrong.npy", "nowhere.png"])
def test_bad_images_name_themselves(run, tmp_path, name):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG no")
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "wrong.npy", np.zeros((3, 5, 5, 1), dtype=np.uint8))
    with pytest.raises(UserError, match=name):
        call("predict", run.path, tmp_path / name)


def test_an_unknown_track_names_the_known_ones(run):
    with pytest.raises(UserError, match="maxherding-central"):
        load_predictor(run.path, "maxherding-centrl")
