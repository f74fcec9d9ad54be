"""Files made to harm: pickles that want to run code, headers that announce too much, bombs. None may succeed."""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_makers import pictures, png, python2_pickle, write_cifar10, write_folder, write_idx
from PIL import Image

from cofal.data.pickles import bytes_array, load_plain
from cofal.data.readers import read
from cofal.data.settings import DataSettings
from cofal.errors import UserError


class Calls:
    """Pickles into a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def global_call(module: str, name: str, argument: str) -> bytes:
    """A pickle, written by hand, of {"data": module.name(argument)}."""
    called = f"c{module}\n{name}\n".encode() + b"(V" + argument.encode() + b"\ntR"
    return b"\x80\x02}U\x04data" + called + b"s."


def hostile_pickles(mark: Path) -> dict[str, bytes]:
    """Pickles that would create the file `mark` if their code ran, or get hold of what could."""
    touch = f"touch {mark}"
    python = f"open({str(mark)!r}, 'w')"
    return {
        "os.system": pickle.dumps({"data": Calls(__import__("os").system, touch)}),
        "posix by hand": global_call("posix", "system", touch),
        "eval": pickle.dumps({"data": Calls(eval, python)}),
        "exec": pickle.dumps({"data": Calls(exec, python)}),
        "getattr": pickle.dumps({"data": Calls(getattr, [], "append")}),
        "__import__": pickle.dumps({"data": Calls(__import__, "antigravity")}),
        "subprocess": pickle.dumps({"data": Calls(subprocess.Popen, ["touch", str(mark)])}),
        "f2py": global_call("numpy.f2py.crackfortran", "myeval", python),
        "runstring": global_call("numpy.testing._private.utils", "runstring", python),
        "numpy.load": global_call("numpy", "load", str(mark)),
        "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0ff2py.os.system.x\x93.",
        "object array": pickle.dumps({"data": np.array([Calls(eval, python)], dtype=object)}),
        "inst opcode": b"(V" + touch.encode() + b"\nios\nsystem\n.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent id": b"\x80\x02Poutside\n.",
        "codec": global_call("_codecs", "encode", "x").replace(b"tR", b"Vrot13\ntR"),
        "not a dictionary": pickle.dumps([1, 2]),
        "ends early": pickle.dumps({"data": b"x" * 100})[:-30],
        "announces a terabyte": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        "bytearray of a terabyte": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
        "memo of gigabytes": b"\x80\x02}r" + struct.pack("<I", 0x7FFFFFFF) + b".",
        "noise": bytes(range(256)),
        "empty": b"",
    }


@pytest.mark.parametrize("name", hostile_pickles(Path("mark")))
def test_a_hostile_pickle_runs_nothing_and_is_refused_in_one_line(tmp_path, name):
    mark = tmp_path / "ran"
    write_cifar10(tmp_path / "cifar", pictures(12, size=32), [0, 1] * 6)
    (tmp_path / "cifar/data_batch_3").write_bytes(hostile_pickles(mark)[name])
    modules = set(sys.modules)
    with pytest.raises(UserError) as caught:
        read(DataSettings(source="cifar", path=str(tmp_path / "cifar")), tmp_path / "cache")
    assert not mark.exists()
    assert not {module for module in set(sys.modules) - modules if module.startswith(("numpy.f2py", "antigravity"))}
    assert "data_batch_3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_hostile_pickles_do_run_code_when_loaded_carelessly(tmp_path):
    """Otherwise the test above would prove nothing."""
    for name in ("os.system", "posix by hand", "eval", "exec", "object array", "inst opcode"):
        mark = tmp_path / name.replace(" ", "-")
        pickle.loads(hostile_pickles(mark)[name])
        assert mark.exists(), name


@pytest.mark.parametrize("style", ["python2", "2", "3", "4", "5"])
def test_honest_pickles_of_every_age_are_read(style):
    data = pictures(4, size=32).reshape(4, -1)
    batch = {"data": data, "labels": [3, 1, 4, 1]}
    content = python2_pickle(batch) if style == "python2" else pickle.dumps(batch, protocol=int(style))
    plain = load_plain(content, "batch")
    assert plain["labels"] == [3, 1, 4, 1]
    assert np.array_equal(bytes_array(plain["data"], "batch"), data)


def test_pickles_with_byte_keys_and_fortran_order_are_read():
    data = np.asfortranarray(pictures(4, size=32).reshape(4, -1))
    for protocol in (2, 4, 5):
        plain = load_plain(pickle.dumps({b"data": data}, protocol=protocol), "batch")
        assert np.array_equal(bytes_array(plain["data"], "batch"), data)


def test_the_makers_python2_pickle_uses_only_byte_strings():
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(python2_pickle({"data": pictures(1), "labels": [1]}))}
    assert "BINSTRING" in opcodes
    assert not {name for name in opcodes if "UNICODE" in name}


@pytest.mark.parametrize(
    "data",
    [
        np.zeros((2, 3072), np.float64),
        np.zeros((2, 3071), np.uint8),
        np.zeros((2, 3, 32, 32), np.uint8),
        [1, 2],
        None,
        b"bytes",
        np.zeros((3, 3072), np.uint8),  # three images, two labels
    ],
)
def test_a_pickle_with_other_contents_is_refused(tmp_path, data):
    write_cifar10(tmp_path / "cifar", pictures(12, size=32), [0, 1] * 6)
    (tmp_path / "cifar/data_batch_2").write_bytes(pickle.dumps({"data": data, "labels": [0, 1]}))
    with pytest.raises(UserError, match="data_batch_2"):
        read(DataSettings(source="cifar", path=str(tmp_path / "cifar")), tmp_path / "cache")


def test_a_hostile_archive_writes_nothing_outside(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py", pictures(12, size=32), [0, 1] * 6)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
        outside = tarfile.TarInfo("../escaped")
        outside.size = 3
        archive.addfile(outside, io.BytesIO(b"out"))
    train, _ = read(DataSettings(source="cifar", path=str(tmp_path / "cifar.tar.gz")), tmp_path / "deep/cache")
    assert np.array_equal(train.images, pictures(12, size=32)[:10])
    assert not list(tmp_path.rglob("escaped"))
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "cifar.tar.gz").read_bytes()[:20_000])
    with pytest.raises(UserError, match=r"cut\.tar\.gz"):
        read(DataSettings(source="cifar", path=str(tmp_path / "cut.tar.gz")), tmp_path / "cache")


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


IDX_HEADERS = {
    "a tebibyte": (bytes([0, 0, 8, 3]) + struct.pack(">3I", 1 << 20, 1024, 1024), b"x" * 64),
    "one image of a tebibyte": (bytes([0, 0, 8, 3]) + struct.pack(">3I", 1, 1 << 20, 1 << 20), b"x" * 64),
    "beyond 64 bits": (bytes([0, 0, 8, 4]) + struct.pack(">4I", *[0xFFFFFFFF] * 4), b""),
    "too short": (bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 4, 4), b"x" * 31),
    "too long": (bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 4, 4), b"x" * 33),
    "floats": (bytes([0, 0, 13, 3]) + struct.pack(">3I", 2, 4, 4), b"x" * 128),
    "no images": (bytes([0, 0, 8, 3]) + struct.pack(">3I", 0, 4, 4), b""),
    "labels": (bytes([0, 0, 8, 1]) + struct.pack(">I", 2), b"xx"),
    "cut header": (bytes([0, 0, 8, 3]), b""),
}


@pytest.mark.parametrize("name", IDX_HEADERS)
@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_header_that_lies_is_refused_before_memory_is_taken(tmp_path, name, packed):
    header, content = IDX_HEADERS[name]
    file = tmp_path / ("train-images-idx3-ubyte" + (".gz" if packed else ""))
    file.write_bytes(gzip.compress(header + content) if packed else header + content)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(2 if name != "no images" else 0, np.uint8))
    before = peak_megabytes()
    with pytest.raises(UserError) as caught:
        read(DataSettings(source="idx", path=str(tmp_path)), tmp_path / "cache")
    assert peak_megabytes() - before < 100
    assert "\n" not in str(caught.value)


def npy_header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_an_npz_that_announces_more_than_it_holds_is_refused(tmp_path):
    for number, content in enumerate([npy_header((1 << 20, 1024, 1024)), npy_header((4, 8, 8)) + b"x" * 100]):
        file = tmp_path / f"{number}.npz"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("images.npy", content)
        with pytest.raises(UserError, match="announces"):
            read(DataSettings(source="npz", path=str(file)), tmp_path / "cache")


def test_an_npz_whose_directory_lies_about_sizes_is_refused(tmp_path):
    """The archive's own directory claims a tebibyte of zeros behind a few packed bytes."""
    shape = (1 << 14, 1024, 1024)
    file = tmp_path / "bomb.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", npy_header(shape) + bytes(1000))
    content = bytearray(file.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 0xFFFFFF00)
    file.write_bytes(content)
    with pytest.raises(UserError):
        read(DataSettings(source="npz", path=str(file)), tmp_path / "cache")


@pytest.mark.parametrize("damage", ["cut", "flipped", "objects"])
def test_a_damaged_or_pickled_npz_names_itself(tmp_path, damage):
    file = tmp_path / "set.npz"
    images = pictures(50)
    if damage == "objects":
        np.savez(file, images=images, labels=np.array([Calls(eval, "1")] * 50, dtype=object))
    else:
        np.savez(file, images=images, labels=np.zeros(50, int))
        content = bytearray(file.read_bytes())
        content[1000] ^= 255
        file.write_bytes(content if damage == "flipped" else content[:3000])
    with pytest.raises(UserError, match=r"set\.npz"):
        read(DataSettings(source="npz", path=str(file)), tmp_path / "cache")


def test_a_picture_bomb_is_refused_in_one_line(tmp_path, monkeypatch, recwarn):
    write_folder(tmp_path / "data", {f"a/{i}.png": pictures(1, seed=i)[0] for i in range(4)})
    (tmp_path / "data/a/bomb.png").write_bytes(png(np.zeros((60, 60, 1), np.uint8)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3000)  # Pillow would only warn up to twice this
    with pytest.raises(UserError, match=r"bomb\.png: 60 x 60 pixels"):
        read(DataSettings(source="folder", path=str(tmp_path / "data"), image_size=4), tmp_path / "cache")
    assert not [warning for warning in recwarn if "bomb" in str(warning.message).lower()]
