"""A user's mistake: one line on stderr, exit status 2, nothing half-written. The machine's fault: exit 1."""

import os
import re
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
import typer

from cofal.cli import app, main
from small_run import SMALL

FAST = [*SMALL, "pretrain.rounds=1", "train.rounds=1"]


@pytest.fixture
def cofal(monkeypatch, capsys, cache):
    """Call the command line in this process: (exit status, stdout, stderr)."""
    monkeypatch.setenv("COFAL_CACHE", str(cache))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cofal", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = exit_.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return call


def settings(*overrides):
    return [part for item in [*FAST, *overrides] for part in ("--set", item)]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["clients.count=0"], ["clients.count", "0"]),
        (["clients.split=dirichlet", "clients.alpha=0"], ["clients.alpha", "0"]),
        (["clients.split=dirichlet", "clients.alpha=-0.5"], ["-0.5"]),
        (["selection.budgets=[900]"], ["900"]),
        (["clients.count=500"], ["500"]),
        (["data.source=parquet", "data.path=nowhere"], ["nowhere"]),
        (["data.source=parquet"], ["data.path"]),
        (["clients.split=by-column"], ["column"]),
        (["encoder.path=nowhere.safetensors"], ["nowhere.safetensors"]),
        (["encoder.frozen=no.such.module:x"], ["no.such.module"]),
        (["pretrain.raunds=3"], ["raunds", "rounds"]),
        (["clients.labeled=nowhere.csv"], ["nowhere.csv"]),
        (["selection.shares=[1, 2]"], ["shares", "2", "3"]),
        (["pretrain.strategy_options={mu = 1.0}"], ["mu"]),
        (["train.strategy_options={mu = 1.0}"], ["mu"]),
        (["train.evaluate=clients", "selection.budgets=[900]"], ["900"]),
        (['selection.coordination=["aggregate"]', "selection.budgets=[900]"], ["900"]),
        (['selection.coordination=["aggregate"]', "selection.secure_sums=true", "clients.count=1"], ["at least 3"]),
    ],
)
def test_a_mistake_in_the_configuration(cofal, tmp_path, overrides, words):
    status, out, err = cofal("run", "digits", "--json", "--out", tmp_path / "new" / "run", *settings(*overrides))
    assert status == 2, err
    assert err.count("\n") == 1, err
    assert err.startswith("cofal: ")
    assert "Traceback" not in err
    assert out == ""
    for word in words:
        assert word in err
    assert list(tmp_path.iterdir()) == []


def test_a_corrected_command_takes_the_folder_of_the_mistaken_one(cofal, tmp_path):
    for mistake in ("selection.budgets=[900]", "clients.count=500"):
        assert cofal("run", "digits", "--json", "--out", tmp_path / "run", *settings(mistake))[0] == 2
    status, _, err = cofal("run", "digits", "--json", "--out", tmp_path / "run", *settings("clients.count=2"))
    assert status == 0, err
    assert sorted(site.name for site in (tmp_path / "run" / "sites").glob("site-*")) == ["site-0", "site-1"]


def test_nan_pixels_are_refused_by_name(cofal, tmp_path):
    images = np.zeros((20, 8, 8), dtype=np.float32)
    images[7, 1, 1] = np.nan
    np.savez(tmp_path / "bad.npz", images=images, labels=np.arange(20) % 2)
    overrides = ["data.source=npz", f"data.path={tmp_path / 'bad.npz'}"]
    status, _, err = cofal("run", "digits", "--json", "--out", tmp_path / "run", *settings(*overrides))
    assert status == 2
    assert "7" in err
    assert err.count("\n") == 1


def test_a_folder_that_is_not_a_run_is_left_alone(cofal, tmp_path):
    names = [".draft.tmp", ".thesis.2.tmp", "thesis.txt"]  # not of our making, though they may look like it
    for name in names:
        (tmp_path / name).write_text("years of work")
    status, _, err = cofal("run", "digits", "--json", "--out", tmp_path, *settings())
    assert status == 2
    assert "not empty" in err
    assert sorted(file.name for file in tmp_path.iterdir()) == names


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "nosuch.toml"], ["predict", "nowhere", "x.png"], ["export", "nowhere"]]
)
def test_missing_things(cofal, arguments):
    status, _, err = cofal(*arguments)
    assert status == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["select", "--client", "rows.npy", "--budget", 2, "--out", "pipe"],
        ["run", "digits", "--out", "pipe"],
        ["report", "nowhere", "--out", "pipe"],
        ["export", "nowhere", "--out", "pipe"],
        ["client", "export", "nowhere", "--format", "csv", "--out", "pipe"],
        ["bench", "select", "--quick", "--out", "pipe"],
        ["bench", "radius", "--quick", "--out", "pipe"],
        ["reproduce", "fig-alpha", "--out", "pipe"],
    ],
)
def test_what_is_no_file_and_no_folder_is_refused_before_the_work(cofal, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.eye(4))
    os.mkfifo("pipe")
    status, _, err = cofal(*arguments)
    assert (status, err.splitlines()[-1].startswith("cofal: cannot write pipe")) == (2, True), err
    assert stat.S_ISFIFO(os.lstat("pipe").st_mode)
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["pipe", "rows.npy"]


def test_help_teaches_every_command(cofal):
    status, out, _ = cofal("--help")
    assert status == 0
    for command in ("demo", "run", "select", "predict", "export"):
        assert command in out
        status, text, _ = cofal(command, "--help")
        assert status == 0
        assert "Example" in text or command == "demo"


def _commands(command, *path):
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, *path, name)


@pytest.mark.parametrize(("path", "command"), _commands(typer.main.get_command(app)))
def test_help_keeps_what_stands_in_brackets(cofal, monkeypatch, path, command):
    """They are tables and defaults, no markup."""
    monkeypatch.setenv("COLUMNS", "400")
    status, out, _ = cofal(*path, "--help")
    assert status == 0
    texts = [command.help, *(each.help for each in getattr(command, "commands", {}).values())]
    texts += [getattr(each, "help", "") for each in command.params]
    for text in texts:
        for word in re.findall(r"\[[^\[\]]+\]", (text or "").replace("\\", "")):
            assert word in out


def test_presets_are_listed(cofal):
    status, out, _ = cofal("run", "--list", "--json")
    assert status == 0
    assert "cifar10-cpu" in out


@pytest.mark.slow
def test_a_full_disk_is_the_machine_s_fault_and_leaves_no_part(tmp_path, cache):
    """A real write that fails: the kernel lets no file grow beyond 100 kB, less than an encoder."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from cofal.cli import main\n"
        "main()\n"
    )
    arguments = ["run", "digits", "--json", "--out", str(tmp_path / "run"), *settings()]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=_environment(cache), timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((tmp_path / "run").rglob("*.tmp"))


@pytest.mark.slow
def test_ctrl_c_stops_with_one_line(tmp_path, cache):
    arguments = ["run", "digits", "--json", "--out", str(tmp_path / "run"), *settings("pretrain.rounds=500")]
    process = subprocess.Popen(
        [sys.executable, "-m", "cofal", *arguments], stderr=subprocess.PIPE, text=True, env=_environment(cache)
    )
    while process.poll() is None and not (tmp_path / "run" / "metrics.jsonl").exists():
        time.sleep(0.01)  # between two looks at the disk
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "cofal: stopped\n")


@pytest.mark.parametrize("arguments", [["select"], ["run", "--bogus"], ["nosuch"], ["select", "--budget", "x"]])
def test_a_wrong_command_line_is_one_line_too(cofal, arguments):
    status, _, err = cofal(*arguments)
    assert status == 2
    assert err.count("\n") == 1
    assert "--help" in err


def _environment(cache):
    return {**os.environ, "COFAL_CACHE": str(cache)}
