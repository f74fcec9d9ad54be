"""Reading, whatever the format: the same images give the same set, the cache decodes once, mistakes are told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_makers import pictures, png, write_cifar10, write_folder, write_idx, write_parquet
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import cofal.data.readers as readers
from cofal.data.choosing import stratified
from cofal.data.imageset import ImageSet
from cofal.data.settings import DataSettings
from cofal.errors import UserError

LABELS = [0, 1, 2, 0, 1, 2, 2, 1, 0, 0, 1, 2]


def read(cache: Path, **settings) -> tuple[ImageSet, ImageSet]:
    return readers.read(DataSettings(**settings), cache)


def in_a_process(settings: DataSettings, cache: Path, first: str = "") -> list[str]:
    """The command that reads in a process of its own, after the statement `first`, and prints the training digest."""
    script = f"""
import os, pathlib, sys
from cofal.data import readers, settings
{first}
train, test = readers.read(settings.DataSettings.model_validate_json(sys.argv[1]), pathlib.Path(sys.argv[2]))
print(train.digest)
"""
    return [sys.executable, "-c", script, settings.model_dump_json(), str(cache)]


def write_all(root: Path) -> dict[str, dict]:
    """The same 10 training and 2 test images in every colour format; the settings that read each."""
    images = pictures(12, size=32)
    folder = {f"{'train' if i < 10 else 'test'}/{LABELS[i]}/{i:02d}.png": image for i, image in enumerate(images)}
    write_folder(root / "folder", folder)
    coded = [png(image) for image in images]
    write_parquet(root / "parquet/train.parquet", coded[:10], LABELS[:10])
    write_parquet(root / "parquet/test.parquet", coded[10:], LABELS[10:])
    arrays = {"x_train": images[:10], "y_train": LABELS[:10], "x_test": images[10:], "y_test": LABELS[10:]}
    np.savez_compressed(root / "set.npz", **arrays)
    write_cifar10(root / "cifar", images, LABELS)
    for name, part, labels in (("train", images[:10], LABELS[:10]), ("t10k", images[10:], LABELS[10:])):
        write_idx(root / f"{name}-images-idx4-ubyte", part)
        write_idx(root / f"{name}-labels-idx1-ubyte", np.array(labels, np.uint8))
    return {
        "folder": {"path": str(root / "folder")},
        "parquet": {"path": str(root / "parquet")},
        "npz": {"path": str(root / "set.npz")},
        "cifar": {"path": str(root / "cifar")},
        "idx": {"path": str(root)},
    }


@pytest.mark.parametrize("source", ["folder", "parquet", "npz", "cifar", "idx"])
def test_every_format_gives_the_same_images_and_labels(tmp_path, source):
    settings = write_all(tmp_path)[source]
    train, test = read(tmp_path / "cache", source=source, **settings)
    images = pictures(12, size=32)
    # a folder is read class by class; its ids tell which image is which
    order = [int(id[-6:-4]) for id in train.ids] if source == "folder" else list(range(10))
    assert np.array_equal(train.images, images[order])
    assert train.labels.tolist() == [LABELS[i] for i in order]
    assert np.array_equal(test.images[np.argsort(test.labels)], images[[10, 11]])
    assert sorted(test.labels.tolist()) == LABELS[10:]
    assert train.classes == test.classes
    assert not set(train.ids) & set(test.ids)


@pytest.mark.parametrize("source", ["folder", "parquet", "npz", "cifar", "idx"])
def test_limit_changes_neither_ids_nor_pixels(tmp_path, source):
    settings = write_all(tmp_path)[source]
    whole, _ = read(tmp_path / "cache", source=source, **settings)
    part, test = read(tmp_path / "cache", source=source, limit=6, test_limit=1, **settings)
    assert len(part) == 6
    assert len(test) == 1
    rows = [whole.ids.index(id) for id in part.ids]
    assert np.array_equal(part.images, whole.images[rows])
    assert np.array_equal(part.labels, whole.labels[rows])
    assert len(set(part.labels.tolist())) == 3


def test_the_cache_decodes_once_until_the_source_or_the_settings_change(tmp_path, monkeypatch):
    source = tmp_path / "set.npz"
    np.savez(source, images=pictures(10), labels=LABELS[:10])
    built = []
    build = readers._build
    monkeypatch.setattr(readers, "_build", lambda *given: built.append(1) or build(*given))
    settings = {"source": "npz", "path": str(source)}
    first, _ = read(tmp_path / "cache", **settings)
    again, _ = read(tmp_path / "cache", **settings)
    assert len(built) == 1
    assert again.digest == first.digest
    assert isinstance(again.images, np.memmap)
    read(tmp_path / "cache", image_size=4, **settings)
    assert len(built) == 2
    np.savez(source, images=pictures(10, seed=1), labels=LABELS[:10])
    os.utime(source, ns=(1, 1))
    changed, _ = read(tmp_path / "cache", **settings)
    assert len(built) == 3
    assert changed.digest != first.digest


def test_digest_and_ids_do_not_depend_on_where_the_data_lies(tmp_path):
    digests = set()
    for place in ("here", "there/below"):
        images = {f"train/{c}/{i}.png": pictures(1, seed=10 * i + ord(c))[0] for c in "ba" for i in range(4)}
        write_folder(tmp_path / place, images if place == "here" else dict(reversed(images.items())))
        sets = read(tmp_path / "cache", source="folder", path=str(tmp_path / place))
        digests.add(tuple(part.digest for part in sets))
    assert len(digests) == 1


def test_a_failed_or_killed_build_leaves_nothing_and_the_next_call_succeeds(tmp_path):
    cache = tmp_path / "cache"
    write_folder(tmp_path / "data", {f"cat/{i}.png": pictures(1, seed=i)[0] for i in range(20)})
    (tmp_path / "data/cat/5.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(UserError, match=r"5\.png.*skip_bad"):
        read(cache, source="folder", path=str(tmp_path / "data"))
    assert [entry.name for entry in cache.iterdir()] == [".lock"]
    settings = DataSettings(source="folder", path=str(tmp_path / "data"), skip_bad=True)
    dies = "readers._complete = lambda *given: os.kill(os.getpid(), 9)"
    killed = subprocess.run(in_a_process(settings, cache, first=dies), check=False)
    assert killed.returncode == -9
    assert any(entry.name.endswith(".partial") for entry in cache.iterdir())
    train, test = readers.read(settings, cache)
    assert len(train) + len(test) == 19
    assert train.skipped + test.skipped == 1
    assert not any(entry.name.endswith(".partial") for entry in cache.iterdir())


def test_two_processes_that_ask_at_once_get_one_cache(tmp_path):
    np.savez(tmp_path / "set.npz", images=pictures(400, size=32), labels=np.arange(400) % 4)
    settings = DataSettings(source="npz", path=str(tmp_path / "set.npz"), image_size=24)
    command = in_a_process(settings, tmp_path / "cache")
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert len(set(answers)) == 1
    assert len([entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]) == 1


def test_digits_need_nothing(tmp_path):
    train, test = read(tmp_path)
    assert train.images.shape == (1438, 8, 8, 1)
    assert test.images.shape == (359, 8, 8, 1)
    assert train.images.max() == 255
    assert not set(train.ids) & set(test.ids)
    shares = np.bincount(test.labels) / (np.bincount(train.labels) + np.bincount(test.labels))
    assert np.abs(shares - 0.2).max() < 0.01
    other, _ = read(tmp_path, seed=1)
    assert other.ids != train.ids


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=60), st.integers(1, 80), st.integers(0, 9))
def test_a_stratified_choice_has_the_asked_size_and_every_class_in_proportion(labels, size, seed):
    labels = np.array(labels)
    rows = stratified(labels, size, np.random.default_rng(seed))
    assert len(rows) == min(size, len(labels))
    assert np.all(np.diff(rows) > 0)
    for value in np.unique(labels):
        due = (labels == value).sum() * min(1, size / len(labels))
        assert abs((labels[rows] == value).sum() - due) < 1


def test_a_class_list_keeps_its_classes_in_its_order(tmp_path):
    images = {f"train/{name}/{i}.png": pictures(1, seed=i)[0] for name in ("n01", "n02", "n03") for i in range(3)}
    images |= {f"val/{name}/v.png": pictures(1)[0] for name in ("n01", "n02", "n03")}
    write_folder(tmp_path / "data", images)
    (tmp_path / "classes.txt").write_text("# two of three\nn03 great grey owl\n\nn01\n")
    settings = {"source": "folder", "path": str(tmp_path / "data"), "class_list": str(tmp_path / "classes.txt")}
    train, test = read(tmp_path / "cache", **settings)
    assert train.classes == test.classes == ["n03", "n01"]
    assert [id.split("/")[1] for id in train.ids] == [train.classes[label] for label in train.labels]
    assert len(train) == 6
    assert len(test) == 2
    for text, words in (("n04\n", "no class 'n04'"), ("", "empty"), ("n01\nn01\n", "twice")):
        (tmp_path / "classes.txt").write_text(text)
        with pytest.raises(UserError, match=words):
            read(tmp_path / "other", **settings)


def test_images_of_different_size_ask_for_image_size(tmp_path):
    write_folder(
        tmp_path / "data", {"a/1.png": pictures(1, 8)[0], "a/2.png": pictures(1, 12)[0], "a/3.png": pictures(1)[0]}
    )
    with pytest.raises(UserError, match=r"8 x 8.*12 x 12.*image_size|12 x 12.*8 x 8.*image_size|6 x 6.*image_size"):
        read(tmp_path / "cache", source="folder", path=str(tmp_path / "data"))
    train, test = read(tmp_path / "cache", source="folder", path=str(tmp_path / "data"), image_size=5)
    assert train.images.shape[1:] == test.images.shape[1:] == (5, 5, 3)


def test_grey_and_colour_images_share_the_sets_channels_also_across_splits(tmp_path):
    grey = {f"train/a/{i}.png": pictures(1, channels=1, seed=i)[0] for i in range(100)}
    write_folder(tmp_path / "data", grey | {"test/a/0.png": pictures(1)[0]})
    train, test = read(tmp_path / "cache", source="folder", path=str(tmp_path / "data"))
    assert train.images.shape == (100, 6, 6, 3)
    first = grey[train.ids[0]]
    assert np.array_equal(train.images[0], np.repeat(first, 3, axis=2))
    assert train.digest == ImageSet.of(np.array(train.images), train.ids, train.labels, train.classes).digest
    assert test.images.shape == (1, 6, 6, 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": "parquet"}, "needs data.path"),
        ({"source": "folder", "path": "nowhere"}, "'nowhere' does not exist"),
        ({"source": "folder", "path": "empty"}, "no image"),
        ({"source": "parquet", "path": "empty"}, "no .parquet"),
        ({"source": "idx", "path": "empty"}, "idx3-ubyte"),
        ({"source": "cifar", "path": "empty"}, "data_batch_1"),
        ({"source": "npz", "path": "text.txt"}, "not an .npz"),
        ({"source": "parquet", "path": "text.txt"}, "cannot read"),
        ({"source": "cifar", "path": "text.txt"}, "not a readable archive"),
        ({"source": "idx", "path": "text-images-idx3"}, "not an IDX"),
        ({"source": "folder", "path": "text.txt"}, "needs a folder"),
        ({"source": "cifar", "path": "empty", "column": "site"}, "no columns"),
        ({"class_list": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_a_wrong_path_is_told_in_one_line(tmp_path, monkeypatch, settings, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("text.txt", "text-images-idx3", "text-labels-idx1"):
        (tmp_path / name).write_text("plain text, nothing else")
    with pytest.raises(UserError) as caught:
        read(tmp_path / "cache", **settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"source": "jpeg"}, {"limit": 0}, {"test_share": 1.0}, {"image_size": 0}, {"paht": "x"}]
)
def test_settings_refuse_what_cannot_be(wrong):
    with pytest.raises(ValidationError):
        DataSettings(**wrong)


def test_real_cifar10_keeps_its_classes_balanced_under_a_limit(tmp_path):
    place = Path(os.environ.get("COFAL_DATA", "/nowhere")) / "cifar10"
    if not place.is_dir():
        pytest.skip("COFAL_DATA names no folder with cifar10")
    train, _ = read(tmp_path, source="parquet", path=str(place), limit=1000, test_limit=100)
    assert np.bincount(train.labels).tolist() == [100] * 10
