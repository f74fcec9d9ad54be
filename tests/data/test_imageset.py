"""The image set and its form on disk: digests follow content, a folder is whole or names itself, subsets fit."""

from __future__ import annotations

import errno
import hashlib

import numpy as np
import pytest
from data_makers import pictures

import cofal.data.imageset as imageset_module
from cofal.data.imageset import ImageSet
from cofal.data.npyfile import NpyWriter
from cofal.errors import EnvironmentFault, UserError


def small(count: int = 7, **changes) -> ImageSet:
    given = {
        "images": pictures(count),
        "ids": [f"image-{number}" for number in range(count)],
        "labels": np.arange(count) % 3 - 1,
        "classes": ["cat", "dog"],
        "groups": ["north", "south"] * (count // 2) + ["east"] * (count % 2),
    }
    return ImageSet.of(**(given | changes))


def test_digest_follows_content_and_nothing_else(tmp_path):
    base = small()
    assert small().digest == base.digest
    assert small(groups=None).digest == base.digest
    changed = pictures(7)
    changed[3, 2, 1, 0] ^= 1
    others = [
        small(images=changed),
        small(ids=[f"picture-{number}" for number in range(7)]),
        small(labels=np.zeros(7, int)),
        small(classes=["cat", "cow"]),
        small(images=np.ascontiguousarray(pictures(7).reshape(7, 4, 9, 3))),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 6
    base.save(tmp_path / "here")
    assert ImageSet.open(tmp_path / "here").digest == base.digest


def test_saved_set_comes_back_as_a_read_only_memmap(tmp_path):
    base = small(skipped=4)
    base.save(tmp_path / "set")
    opened = ImageSet.open(tmp_path / "set")
    assert isinstance(opened.images, np.memmap)
    assert not opened.images.flags.writeable
    assert np.array_equal(opened.images, base.images)
    assert np.array_equal(opened.labels, base.labels)
    assert opened.labels.dtype == np.int64
    assert (opened.ids, opened.classes, opened.groups) == (base.ids, base.classes, base.groups)
    assert opened.skipped == 4
    opened.save(tmp_path / "set")  # over itself
    assert ImageSet.open(tmp_path / "set").digest == base.digest
    part = opened.subset(np.arange(2, 5))
    part.save(tmp_path / "set")  # a view of the file it replaces
    assert ImageSet.open(tmp_path / "set").digest == part.digest


@pytest.mark.parametrize("rows", [[], [2, 3, 4], [5, 0, 3], [6]])
@pytest.mark.parametrize("in_memory", [1 << 20, 0])
def test_subset_equals_the_set_made_of_these_rows(tmp_path, monkeypatch, rows, in_memory):
    monkeypatch.setattr(imageset_module, "_IN_MEMORY", in_memory)
    base = small()
    base.save(tmp_path)
    before = sorted(tmp_path.iterdir())
    part = ImageSet.open(tmp_path).subset(np.array(rows, dtype=int))
    assert isinstance(part.images, np.ndarray)
    assert np.array_equal(part.images, base.images[rows])
    direct = ImageSet.of(
        base.images[rows],
        [base.ids[row] for row in rows],
        base.labels[rows],
        base.classes,
        [base.groups[r] for r in rows],
    )
    assert (part.digest, part.ids, part.groups) == (direct.digest, direct.ids, direct.groups)
    assert sorted(tmp_path.iterdir()) == before  # a spilled subset leaves no file behind


def test_a_subset_beyond_the_set_is_refused():
    with pytest.raises(UserError, match="set of 7 images"):
        small().subset(np.array([0, 7]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "meta.json").unlink(),
        lambda folder: (folder / "meta.json").write_text("{"),
        lambda folder: (folder / "meta.json").write_text("[]"),
        lambda folder: (folder / "meta.json").write_text(
            (folder / "meta.json").read_text().replace("image-3", "image-x")
        ),
        lambda folder: (folder / "images.npy").unlink(),
        lambda folder: (folder / "images.npy").write_bytes((folder / "images.npy").read_bytes()[:-10]),
        lambda folder: (folder / "images.npy").write_bytes(b""),
        lambda folder: (folder / "hashes.npy").write_bytes(b"\x93NUMPY"),
        lambda folder: np.save(folder / "images.npy", np.zeros((7, 6, 6, 1), np.uint8)),
    ],
)
def test_a_damaged_folder_names_itself_in_one_line(tmp_path, damage):
    folder = tmp_path / "damaged set"
    small().save(folder)
    damage(folder)
    with pytest.raises(UserError) as caught:
        ImageSet.open(folder)
    assert "damaged set" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": pictures(7).astype(np.float32)}, "float32"),
        ({"images": pictures(7, channels=2)}, "uint8"),
        ({"ids": ["a"] * 7}, "unique"),
        ({"ids": ["a"]}, "1 ids"),
        ({"labels": np.full(7, 2)}, "2 classes"),
        ({"labels": np.full(7, -2)}, "2 classes"),
    ],
)
def test_a_set_that_cannot_be_is_refused(changes, words):
    with pytest.raises(UserError, match=words):
        small(**changes)


def test_growing_file_turns_from_grey_to_colour_and_counts_what_came(tmp_path, monkeypatch):
    grey, colour = pictures(5, channels=1), pictures(3)
    with NpyWriter(tmp_path / "images.npy", expected=100) as writer:
        writer.append(grey[:4])
        writer.append(colour)
        writer.append(grey[4:])
        writer.finish()
    expected = np.concatenate([np.repeat(grey[:4], 3, axis=-1), colour, np.repeat(grey[4:], 3, axis=-1)])
    assert np.array_equal(np.load(tmp_path / "images.npy", mmap_mode="r"), expected)
    assert writer.hashes.tobytes() == b"".join(hashlib.sha256(row.tobytes()).digest() for row in expected)


def test_too_small_a_disk_is_told_before_anything_is_decoded(tmp_path):
    with (
        NpyWriter(tmp_path / "images.npy", expected=1 << 60) as writer,
        pytest.raises(EnvironmentFault, match="GB free"),
    ):
        writer.append(pictures(1))


def test_a_full_disk_while_writing_is_the_machines_fault(tmp_path):
    try:
        full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - closed below
    except OSError:
        pytest.skip("no /dev/full on this system")
    with NpyWriter(tmp_path / "images.npy", expected=10) as writer, full:
        writer.append(pictures(1))
        writer._file.close()
        writer._file = full
        with pytest.raises(EnvironmentFault, match=r"images\.npy") as caught:
            writer.append(pictures(1))
    assert caught.value.__cause__.errno == errno.ENOSPC
