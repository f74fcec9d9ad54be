"""Parquet and npz: names found without being told, class names, columns, shards, and the values of arrays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_makers import pictures, png, write_parquet

from cofal.data.imageset import ImageSet
from cofal.data.readers import read
from cofal.data.settings import DataSettings
from cofal.errors import UserError

CODED = [png(image) for image in pictures(8)]
LABELS = [0, 1, 0, 1, 0, 1, 0, 1]


def read_from(path: Path, source: str = "parquet", **settings) -> tuple[ImageSet, ImageSet]:
    return read(DataSettings(source=source, path=str(path), **settings), path.parent / "cache")


def hugging_face(label: str, names: list[str]) -> dict[str, str]:
    features = {label: {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


@pytest.mark.parametrize(
    ("label", "metadata", "classes"),
    [
        ("label", None, ["0", "1"]),
        ("fine_label", hugging_face("fine_label", ["cat", "dog", "cow"]), ["cat", "dog", "cow"]),
        ("labels", hugging_face("other", ["cat"]), ["0", "1"]),
        ("label", {"classes": "cat,dog"}, ["cat", "dog"]),
        ("label", {"classes": "cat, dog"}, ["cat", "dog"]),
        (
            "label",
            {"classes": "house finch, linnet,robin, American robin"},
            ["house finch, linnet", "robin, American robin"],
        ),
        ("label", {"classes": '["cat", "dog"]'}, ["cat", "dog"]),
        ("label", {"classes": "cat\ndog"}, ["cat", "dog"]),
    ],
)
@pytest.mark.parametrize("image", ["img", "image"])
def test_columns_and_class_names_are_found(tmp_path, image, label, metadata, classes):
    write_parquet(tmp_path / "d/train.parquet", CODED, LABELS, image=image, label=label, metadata=metadata)
    train, _ = read_from(tmp_path / "d")
    assert train.classes == classes


def test_shards_follow_each_other_in_the_order_of_their_names(tmp_path):
    for shard in (1, 0):
        rows = slice(4 * shard, 4 * shard + 4)
        file = tmp_path / f"hub/data/train-0000{shard}-of-00002.parquet"
        write_parquet(file, CODED[rows], LABELS[rows], row_group_size=3)
    write_parquet(tmp_path / "hub/data/test-00000-of-00001.parquet", CODED[:2], LABELS[:2])
    write_parquet(tmp_path / "hub/data/validation-00000-of-00001.parquet", CODED[:1], LABELS[:1])
    train, test = read_from(tmp_path / "hub")
    assert np.array_equal(train.images, pictures(8))
    assert train.ids == [f"train-{row:05d}" for row in range(8)]
    assert test.ids == ["test-00000", "test-00001"]
    part, _ = read_from(tmp_path / "hub", limit=3)
    assert np.array_equal(part.images, pictures(8)[[int(id[-1]) for id in part.ids]])


def test_the_hubs_converted_layout_and_a_single_file_are_understood(tmp_path):
    for split, rows in (("train", slice(0, 6)), ("test", slice(6, 8))):
        write_parquet(tmp_path / f"set/default/{split}/0000.parquet", CODED[rows], LABELS[rows])
        write_parquet(tmp_path / f"{split}.parquet", CODED[rows], LABELS[rows])
    for path in (tmp_path / "set", tmp_path / "train.parquet"):
        train, test = read_from(path)
        assert (len(train), len(test)) == (6, 2)
    write_parquet(tmp_path / "lone/all.parquet", CODED, LABELS)
    train, test = read_from(tmp_path / "lone/all.parquet", test_share=0.25)
    assert (len(train), len(test)) == (6, 2)
    assert train.ids[0].startswith("image-")
    train, test = read_from(tmp_path / "lone/all.parquet", test_path=str(tmp_path / "test.parquet"))
    assert (len(train), len(test)) == (8, 2)


def test_paths_serve_as_ids_only_where_they_are_unique(tmp_path):
    write_parquet(tmp_path / "a/train.parquet", CODED, LABELS, [f"scan {i}.png" for i in range(8)])
    write_parquet(tmp_path / "a/test.parquet", CODED[:1], LABELS[:1], ["other.png"])
    train, test = read_from(tmp_path / "a")
    assert train.ids == [f"scan {i}.png" for i in range(8)]
    assert test.ids == ["other.png"]
    write_parquet(tmp_path / "a/test.parquet", CODED[:1], LABELS[:1], ["scan 0.png"])
    train, test = read_from(tmp_path / "a")
    assert (train.ids[0], test.ids[0]) == ("train-00000", "test-00000")


def test_a_column_groups_the_images(tmp_path):
    sites = ["north", "south"] * 4
    write_parquet(tmp_path / "d/train.parquet", CODED, LABELS, site=sites, device=[None, *range(7)])
    train, test = read_from(tmp_path / "d", column="site")
    assert set(train.groups) == {"north", "south"}
    assert [sites[int(id[-5:])] for id in train.ids] == train.groups
    assert len(test.groups) == len(test)
    with pytest.raises(UserError, match=r"no column 'hospital'; its columns are img, label, site, device"):
        read_from(tmp_path / "d", column="hospital")
    with pytest.raises(UserError, match="row 0 has no value in column device"):
        read_from(tmp_path / "d", column="device")


def test_names_nulls_and_missing_labels(tmp_path):
    write_parquet(tmp_path / "a.parquet", CODED, ["dog", "cat", None, "dog", "dog", "cat", "cat", "dog"])
    train, test = read_from(tmp_path / "a.parquet")
    assert train.classes == ["cat", "dog"]
    assert sorted([*train.labels, *test.labels]) == [-1, 0, 0, 0, 1, 1, 1, 1]
    write_parquet(tmp_path / "b.parquet", CODED, [0, None, -1, 1, 0, 1, 0, 1])
    train, test = read_from(tmp_path / "b.parquet")
    assert sorted([*train.labels, *test.labels]) == [-1, -1, 0, 0, 0, 1, 1, 1]
    write_parquet(tmp_path / "c.parquet", CODED, LABELS, label="diagnosis")
    with pytest.raises(UserError, match=r'label_column to one of img, diagnosis \(or "none"'):
        read_from(tmp_path / "c.parquet")
    assert len(read_from(tmp_path / "c.parquet", label_column="diagnosis")[0].classes) == 2
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    train, _ = read_from(tmp_path / "c.parquet", label_column="none", class_list=str(tmp_path / "classes.txt"))
    assert train.classes == ["cat", "dog"]
    assert set(train.labels) == {-1}


@pytest.mark.parametrize(
    ("labels", "metadata", "words"),
    [
        ([0, 1, 2, 0, 0, 0, 0, 0], {"classes": "cat,dog"}, "row 2: label 2 is out of range"),
        ([0, 1, -3, 0, 0, 0, 0, 0], None, "row 2: label -3 is out of range"),
        ([0.5] * 8, None, "not a whole number"),
        ([2**40] * 8, None, "too many"),
        ([[1, 2]] * 8, None, "shape"),
    ],
)
def test_labels_that_cannot_be_are_refused(tmp_path, labels, metadata, words):
    write_parquet(tmp_path / "a.parquet", CODED, labels, metadata=metadata)
    with pytest.raises(UserError, match=words):
        read_from(tmp_path / "a.parquet")


def test_a_broken_image_names_its_row_or_is_counted(tmp_path):
    broken = [*CODED[:5], CODED[5][:40], b"", None]
    write_parquet(tmp_path / "train.parquet", broken, LABELS, row_group_size=4)
    write_parquet(tmp_path / "test.parquet", CODED[:2], LABELS[:2])
    with pytest.raises(UserError, match=r"train\.parquet row 5"):
        read_from(tmp_path / "train.parquet")
    train, test = read_from(tmp_path / "train.parquet", skip_bad=True)
    assert np.array_equal(train.images, pictures(8)[:5])
    assert (train.skipped, test.skipped) == (3, 0)
    assert train.ids == [f"train-{row:05d}" for row in range(5)]
    write_parquet(tmp_path / "test.parquet", [b"x"], LABELS[:1])
    with pytest.raises(UserError, match="none of the 1 images"):
        read_from(tmp_path / "train.parquet", skip_bad=True)


def test_a_damaged_or_unfit_parquet_names_itself(tmp_path):
    write_parquet(tmp_path / "a.parquet", CODED, LABELS)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cut\.parquet"):
        read_from(tmp_path / "cut.parquet")
    pq.write_table(pa.table({"img": [1, 2], "label": [0, 1]}), tmp_path / "numbers.parquet")
    with pytest.raises(UserError, match="not encoded images"):
        read_from(tmp_path / "numbers.parquet")
    write_parquet(tmp_path / "none.parquet", [], [])
    with pytest.raises(UserError, match="no images"):
        read_from(tmp_path / "none.parquet")


def save(tmp_path: Path, **arrays) -> Path:
    np.savez(tmp_path / "set.npz", **arrays)
    return tmp_path / "set.npz"


def all_images(parts: tuple[ImageSet, ImageSet]) -> np.ndarray:
    """Training and test images in the order of the file."""
    ids = parts[0].ids + parts[1].ids
    return np.concatenate([part.images for part in parts])[np.argsort(ids)]


@pytest.mark.parametrize(
    "given",
    [
        pictures(8),
        pictures(8).astype(np.float32),
        pictures(8).astype(np.float64) / 255,
        (pictures(8) / 255).astype(np.float16),
        pictures(8).astype(np.int64),
        pictures(8).astype(np.uint16) * 257,
        pictures(8).transpose(0, 3, 1, 2),
        np.ascontiguousarray(pictures(8).transpose(0, 3, 1, 2)),
        np.asfortranarray(pictures(8)),
        pictures(8).astype(">f4"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}-{array.flags.c_contiguous}",
)
def test_numbers_of_every_kind_become_the_same_bytes(tmp_path, given):
    assert np.array_equal(all_images(read_from(save(tmp_path, images=given, labels=LABELS), "npz")), pictures(8))


def test_black_and_white_arrays_span_the_whole_range(tmp_path):
    mask = pictures(8, channels=1)[..., 0] > 127
    found = all_images(read_from(save(tmp_path, images=mask, labels=LABELS), "npz"))
    assert np.array_equal(found[..., 0], mask * 255)


def test_keras_and_medmnist_names(tmp_path):
    images = pictures(8, channels=1)[..., 0]
    column = np.array(LABELS)[:, None]
    medical = {"train_images": images, "train_labels": column, "test_images": images[:3], "test_labels": column[:3]}
    train, test = read_from(save(tmp_path, **medical, val_images=images[:1], val_labels=column[:1]), "npz")
    assert (len(train), len(test)) == (8, 3)
    assert train.labels.tolist() == LABELS
    assert train.images.shape == (8, 6, 6, 1)
    one_hot = np.eye(2)[LABELS]
    train, test = read_from(
        save(tmp_path, x_train=images, y_train=one_hot, x_test=images[:3], y_test=one_hot[:3]), "npz"
    )
    assert test.labels.tolist() == LABELS[:3]


def test_names_groups_and_unlabelled_arrays(tmp_path):
    sites = np.array(["north", "south"] * 4)
    file = save(tmp_path, images=pictures(8), labels=LABELS, classes=["cat", "dog"], site=sites)
    train, _ = read_from(file, "npz", column="site")
    assert train.classes == ["cat", "dog"]
    assert [sites[int(id[-5:])] for id in train.ids] == train.groups
    with pytest.raises(UserError, match="no array 'device'"):
        read_from(file, "npz", column="device")
    train, _ = read_from(save(tmp_path, images=pictures(8)), "npz")
    assert set(train.labels) == {-1}


def with_value(value: float) -> np.ndarray:
    array = pictures(8).astype(np.float32)
    array[5, 2, 2, 1] = value
    return array


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": with_value(np.nan)}, "array images row 5 holds NaN or infinity"),
        ({"images": with_value(np.inf)}, "array images row 5 holds NaN or infinity"),
        ({"images": with_value(-3)}, "values from -3 to"),
        ({"images": with_value(300)}, "to 300; images must lie"),
        ({"images": pictures(8).astype(np.complex64)}, "complex64"),
        ({"images": np.zeros((8, 5))}, "shape"),
        ({"images": np.zeros((8, 5, 5, 4), np.uint8)}, "shape"),
        ({"images": np.zeros((0, 5, 5, 3), np.uint8), "labels": []}, "no images"),
        ({"images": pictures(8), "labels": LABELS[:5]}, "8 images but 5 labels"),
        ({"images": pictures(8), "labels": np.ones((8, 3))}, "several classes"),
        ({"images": pictures(8), "labels": np.zeros((8, 3, 2))}, "shape"),
        ({"pixels": pictures(8)}, "holds labels, pixels; expected"),
    ],
)
def test_arrays_that_cannot_be_images_are_refused_in_one_line(tmp_path, arrays, words):
    with pytest.raises(UserError, match=words) as caught:
        read_from(save(tmp_path, **({"labels": LABELS} | arrays)), "npz")
    assert "\n" not in str(caught.value)
