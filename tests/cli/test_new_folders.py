"""`server init`, `client init` and `client example`: a mistake is one line, and the folder is free for the next try."""

import pytest
from cryptography import x509

from cofal.deploy.example import write_example

LONG = ".".join(["abcdefghij"] * 9)  # 98 characters: a good host name, too long for a common name


@pytest.fixture(autouse=True)
def images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_example(tmp_path / "example", 1, 20, 0)
    (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----")
    return ["--images", "example/north/images", "--classes", "example/classes.txt", "--ca", "ca.crt"]


SERVER_MISTAKES = {
    "no host": (["--host", ""], "--host ''"),
    "a part of the host too long": (["--host", "a" * 70], "a" * 70),
    "a port beyond the last": (["--host", "localhost", "--port", 99999], "99999"),
    "no port after the last": (["--host", "localhost", "--port", 65535], "65536"),
    "one port for both": (["--host", "localhost", "--port", 9443, "--control-port", 9443], "9443"),
    "no test images": (["--host", "localhost", "--test-images", "nowhere", "--classes", "a,b"], "nowhere"),
    "no such size": (["--host", "localhost", "--image-size", 0], "--image-size"),
}


@pytest.mark.parametrize("mistake", SERVER_MISTAKES)
def test_a_mistaken_server_leaves_nothing(cofal, tmp_path, mistake):
    options, word = SERVER_MISTAKES[mistake]
    status, _, err = cofal("server", "init", "outer/f", *options)
    assert (status, err.count("\n")) == (2, 1), err
    assert word in err
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ca.crt", "example"]


def test_a_long_host_name_is_in_the_certificate(cofal, tmp_path):
    assert cofal("server", "init", "f", "--host", LONG)[0] == 0
    made = x509.load_pem_x509_certificate((tmp_path / "f" / "tls" / "server.crt").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [LONG, "localhost"]


def test_a_server_may_hold_the_test_images(cofal, tmp_path, images):
    options = ["--test-images", "example/north/test", "--classes", "example/classes.txt"]
    status, out, err = cofal("server", "init", "f", "--host", "localhost", *options)
    assert (status, err) == (0, "")
    assert "Test set: 5 images" in out
    assert (tmp_path / "f" / "server" / "test" / "meta.json").exists()


SITE_MISTAKES = {
    "a port beyond the last": (["--server", "localhost:99999"], "99999"),
    "port zero": (["--server", "localhost:0"], "localhost:0"),
    "a digit that is no number": (["--server", "localhost:²"], "HOST:PORT"),
    "an address of the web": (["--server", "https://localhost:9443"], "HOST:PORT"),
    "a name with a blank": (["--server", "localhost:9443", "--name", "a b"], "'a b'"),
    "no such size": (["--server", "localhost:9443", "--image-size", 0], "--image-size"),
    "a broken image": (["--server", "localhost:9443"], "broken.png"),
}


@pytest.mark.parametrize("mistake", SITE_MISTAKES)
def test_a_mistaken_site_leaves_nothing(cofal, tmp_path, images, mistake):
    if mistake == "a broken image":
        (tmp_path / "example" / "north" / "images" / "broken.png").write_bytes(b"no image")
    options, word = SITE_MISTAKES[mistake]
    status, _, err = cofal("client", "init", "s", *images, *options)
    assert (status, err.splitlines()[-1].startswith("cofal: ")) == (2, True), err
    assert word in err
    assert "Traceback" not in err
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("folder", ["a-file", "a-file/f"])
@pytest.mark.parametrize("command", ["server init", "client init", "client example"])
def test_a_folder_that_cannot_be_made_is_told(cofal, tmp_path, images, command, folder):
    (tmp_path / "a-file").write_text("not cofal's")
    options = {
        "server init": ["--host", "localhost"],
        "client init": [*images, "--server", "localhost:9443", "--name", "s"],
        "client example": [],
    }
    status, _, err = cofal(*command.split(), folder, *options[command])
    assert (status, err.count("\n")) == (2, 1), err
    assert f"cannot write {folder}" in err
    assert (tmp_path / "a-file").read_text() == "not cofal's"


def test_a_folder_in_use_is_left_alone(cofal, tmp_path):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "thesis.txt").write_text("years of work")
    status, _, err = cofal("server", "init", "f", "--host", "localhost")
    assert (status, "not empty" in err) == (2, True)
    assert [file.name for file in (tmp_path / "f").iterdir()] == ["thesis.txt"]
