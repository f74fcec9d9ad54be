"""Image folders and IDX files: layouts, groups, what is passed over, and how odd pixels become grey or colour."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from data_makers import pictures, png, write_folder, write_idx
from PIL import Image

from cofal.data.imageset import ImageSet
from cofal.data.listing import Encoded
from cofal.data.picture import BadImage, decode, resize
from cofal.data.readers import read
from cofal.data.settings import DataSettings
from cofal.errors import UserError


def read_from(path: Path, source: str = "folder", **settings) -> tuple[ImageSet, ImageSet]:
    return read(DataSettings(source=source, path=str(path), **settings), path.parent / "cache")


def some(*names: str) -> dict[str, np.ndarray]:
    return {name: pictures(1, seed=number)[0] for number, name in enumerate(names)}


def test_hidden_files_and_other_files_are_passed_over_and_endings_may_be_capital(tmp_path):
    root = tmp_path / "data"
    write_folder(root, some("train/cat/a.PNG", "train/cat/deep/b.png", "train/dog/c.Png", "test/cat/t.png"))
    write_folder(root, some("train/.thumbs/x.png", "train/cat/.hidden.png"))
    (root / "train/cat/notes.txt").write_text("not an image")
    train, test = read_from(root)
    assert train.ids == ["train/cat/a.PNG", "train/cat/deep/b.png", "train/dog/c.Png"]
    assert train.classes == ["cat", "dog"]
    assert train.labels.tolist() == [0, 0, 1]
    assert test.ids == ["test/cat/t.png"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["test/a/t.png", "val/a/v.png"], "test/a/t.png"),
        (["val/a/v.png"], "val/a/v.png"),
        (["test/unlabelled.png", "val/a/v.png"], "val/a/v.png"),  # as ImageNet comes
        (["validation/a/v.png"], "validation/a/v.png"),
    ],
)
def test_the_test_split_is_found(tmp_path, names, expected):
    write_folder(tmp_path / "data", some("train/a/1.png", "train/a/2.png", *names))
    _, test = read_from(tmp_path / "data")
    assert test.ids == [expected]


def test_a_test_folder_elsewhere_and_classes_only_it_has(tmp_path):
    write_folder(tmp_path / "data", some("a/1.png", "a/2.png"))
    write_folder(tmp_path / "held out", some("a/3.png", "b/4.png"))
    train, test = read_from(tmp_path / "data", test_path=str(tmp_path / "held out"))
    assert train.ids == ["a/1.png", "a/2.png"]
    assert test.ids == ["held out/a/3.png", "held out/b/4.png"]
    assert train.classes == test.classes == ["a", "b"]


def test_images_without_a_class_folder_are_unlabelled(tmp_path):
    write_folder(tmp_path / "data", some(*[f"{number}.png" for number in range(6)]))
    train, test = read_from(tmp_path / "data")
    assert set(train.labels) == set(test.labels) == {-1}
    assert train.classes == []


@pytest.mark.parametrize("layout", ["class/group", "group/class"])
def test_groups_come_from_a_folder_level(tmp_path, layout):
    pairs = [("cat", "north"), ("cat", "south"), ("dog", "south"), ("dog", "north")] * 2
    paths = [("/".join(pair if layout == "class/group" else pair[::-1]), n) for n, pair in enumerate(pairs)]
    write_folder(tmp_path / "data", some(*[f"train/{path}/{number}.png" for path, number in paths]))
    train, test = read_from(tmp_path / "data", column=layout)
    assert train.classes == ["cat", "dog"]
    for part in (train, test):
        for id, label, group in zip(part.ids, part.labels, part.groups):
            assert (part.classes[label], group) == pairs[int(Path(id).stem)]
    write_folder(tmp_path / "data", some("train/cat/alone.png"))
    with pytest.raises(UserError, match=r"alone\.png has no group"):
        read_from(tmp_path / "data", column="class/group")


def test_groups_come_from_a_table(tmp_path):
    names = [f"cat/{number}.png" for number in range(5)]
    write_folder(tmp_path / "data", some(*names))
    table = tmp_path / "sites.csv"
    table.write_text("path,group\n" + "".join(f"{name},site {number % 2}\n" for number, name in enumerate(names)))
    train, _ = read_from(tmp_path / "data", column=str(table))
    assert [f"site {int(Path(id).stem) % 2}" for id in train.ids] == train.groups
    table.write_text("path,group\ncat/0.png,here\n")
    with pytest.raises(UserError, match=r"cat/1\.png has no group; add it to"):
        read_from(tmp_path / "data", column=str(table))
    table.write_text("file,site\n")
    with pytest.raises(UserError, match="needs path and group"):
        read_from(tmp_path / "data", column=str(table))
    with pytest.raises(UserError, match="group/class"):
        read_from(tmp_path / "data", column="hospital")
    with pytest.raises(UserError, match="does not exist"):
        read_from(tmp_path / "data", column="nowhere.csv")


def test_broken_files_are_counted_whatever_is_wrong_with_them(tmp_path):
    root = tmp_path / "data"
    write_folder(root, some(*[f"train/cat/{number}.png" for number in range(5)], "test/cat/t.png"))
    whole = png(pictures(1, size=40)[0])
    (root / "train/cat/cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "train/cat/empty.jpg").write_bytes(b"")
    (root / "train/cat/text.jpg").write_text("<html>not found</html>")
    (root / "train/cat/dangling.png").symlink_to(tmp_path / "nowhere.png")
    (root / "train/cat/script.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    train, _ = read_from(root, skip_bad=True)
    assert (len(train), train.skipped) == (5, 5)
    with pytest.raises(UserError, match=r"(cut|empty|text|dangling|script)\.(png|jpg)") as caught:
        read_from(root)
    assert "\n" not in str(caught.value)


def test_linked_folders_are_followed_but_not_in_circles(tmp_path):
    write_folder(tmp_path / "elsewhere", some("1.png", "2.png", "3.png"))
    (tmp_path / "data/cat").mkdir(parents=True)
    (tmp_path / "data/cat/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/cat/round").symlink_to(tmp_path / "data")
    train, test = read_from(tmp_path / "data")
    assert sorted(train.ids + test.ids) == [f"cat/linked/{number}.png" for number in (1, 2, 3)]


def decoded(image: Image.Image, format: str = "PNG", size: int | None = None, **options) -> np.ndarray:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return decode(Encoded("image", stream.getvalue()), size)


def test_pixels_of_every_mode_become_grey_or_colour():
    colour = pictures(1, size=8)[0]
    grey = colour[..., :1]
    assert np.array_equal(decoded(Image.fromarray(grey[..., 0])), grey)
    deep = grey[..., 0].astype(np.uint16) * 257
    assert np.array_equal(decoded(Image.fromarray(deep)), grey)
    assert np.array_equal(decoded(Image.fromarray(deep), "TIFF"), grey)
    assert np.array_equal(decoded(Image.fromarray(grey[..., 0] > 127)), (grey > 127) * np.uint8(255))
    palette = Image.fromarray(colour).quantize(16)
    assert np.array_equal(decoded(palette), np.asarray(palette.convert("RGB")))
    cmyk = decoded(Image.fromarray(np.full((8, 8, 3), [200, 40, 90], np.uint8)).convert("CMYK"), "JPEG")
    assert np.abs(cmyk.astype(int) - [200, 40, 90]).max() < 12
    assert decoded(Image.fromarray(colour), "WEBP", lossless=True).tolist() == colour.tolist()
    assert decoded(Image.fromarray(colour), "BMP").tolist() == colour.tolist()
    with pytest.raises(BadImage, match="floating-point"):
        decoded(Image.fromarray(grey[..., 0].astype(np.float32)), "TIFF")


def test_transparent_pixels_show_white():
    image = np.zeros((4, 4, 4), np.uint8)
    image[:2] = [10, 20, 30, 255]
    found = decoded(Image.fromarray(image))
    assert found[:2].reshape(-1, 3).tolist() == [[10, 20, 30]] * 8
    assert (found[2:] == 255).all()
    grey = np.zeros((4, 4, 2), np.uint8)
    assert decoded(Image.fromarray(grey, "LA")).tolist() == np.full((4, 4, 1), 255).tolist()


def test_photographs_stand_upright():
    image = Image.fromarray(pictures(1, size=6)[0][:, :4])
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    assert np.array_equal(decoded(image, exif=exif), np.rot90(np.asarray(image), -1))


def test_scaling_keeps_the_middle_of_the_longer_side():
    image = np.zeros((10, 30, 3), np.uint8)
    image[:, 10:20] = 200
    for found in (decoded(Image.fromarray(image), size=5), resize(image, 5)):
        assert found.shape == (5, 5, 3)
        assert found[:, 1:4].min() > 190
    photo = decoded(Image.fromarray(pictures(1, size=200)[0]).resize((400, 300)), "JPEG", size=20)
    assert photo.shape == (20, 20, 3)


def write_mnist(root: Path, prefix: str = "", ending: str = "", test: str = "t10k") -> None:
    images = pictures(8, channels=1)[..., 0]
    for name, part in (("train", slice(0, 6)), (test, slice(6, 8))):
        write_idx(root / f"{prefix}{name}-images-idx3-ubyte{ending}", images[part])
        write_idx(root / f"{prefix}{name}-labels-idx1-ubyte{ending}", np.arange(8, dtype=np.uint8)[part])


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("test", ["t10k", "test"])
def test_idx_is_read_packed_and_unpacked(tmp_path, ending, test):
    (tmp_path / "mnist").mkdir()
    write_mnist(tmp_path / "mnist", ending=ending, test=test)
    for path in (tmp_path / "mnist", tmp_path / f"mnist/train-images-idx3-ubyte{ending}"):
        found_train, found_test = read_from(path, "idx")
        assert np.array_equal(found_train.images, pictures(8, channels=1)[:6])
        assert np.array_equal(found_test.images, pictures(8, channels=1)[6:])
        assert found_test.labels.tolist() == [6, 7]


def test_several_idx_sets_in_a_folder_and_missing_labels_are_told(tmp_path):
    write_mnist(tmp_path, "letters-")
    write_mnist(tmp_path, "digits-", ".gz")
    with pytest.raises(UserError, match=r"several sets \(digits-train.*letters-train"):
        read_from(tmp_path, "idx")
    train, test = read_from(tmp_path / "digits-train-images-idx3-ubyte.gz", "idx")
    assert (len(train), len(test)) == (6, 2)
    write_idx(tmp_path / "letters-train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    with pytest.raises(UserError, match="6 images"):
        read_from(tmp_path / "letters-train-images-idx3-ubyte", "idx")
    (tmp_path / "letters-train-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match=r"labels of .* are missing"):
        read_from(tmp_path / "letters-train-images-idx3-ubyte", "idx")
