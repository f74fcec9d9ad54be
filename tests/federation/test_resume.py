"""kill -9 at any moment, the same command again: the run ends with the picks and numbers of an unbroken one."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from cofal.federation.embedded import opened, prepare, run_embedded
from cofal.files import read_json, write_text
from cofal.rundir import RunDir
from small_run import SMALL

SLOWED = ["pretrain.rounds=6", "train.rounds=20"]  # long enough to be hit in the middle


def start(folder, cache):
    overrides = [part for item in [*SMALL, *SLOWED] for part in ("--set", item)]
    command = [sys.executable, "-m", "cofal", "run", "digits", "--out", str(folder), "--json", *overrides]
    return subprocess.Popen(
        command, env={**os.environ, "COFAL_CACHE": str(cache)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def kill_when(folder, cache, condition) -> bool:
    """Start the run and kill -9 it as soon as `condition` holds; False if it ended before."""
    process = start(folder, cache)
    while process.poll() is None:
        if condition(RunDir(folder)):
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)  # between two looks at the disk, not for luck
    return False


def finished_text(run):
    cells = [{key: value for key, value in cell.items() if key != "seconds"} for cell in read_json(run.results)]
    picks = {
        file.stem: [step["picks"] for step in read_json(file)["steps"]] for file in sorted(run.path.glob("picks/*"))
    }
    rounds = [{key: value for key, value in line.items() if key != "seconds"} for line in run.rounds()]
    models = {file.parent.name: file.read_bytes() for file in sorted(run.path.glob("models/*/*"))}
    return cells, picks, rounds, run.encoder.read_bytes(), models


MOMENTS = {
    "while the sites are made": lambda run: (run.path / "sites").exists(),
    "after two rounds of the encoder": lambda run: len(run.rounds()) >= 2,
    "as the encoder is done": lambda run: run.encoder.exists(),
    "as the embeddings arrive": lambda run: (run.server / "embeddings").exists(),
    "after the first picks": lambda run: (run.path / "picks").exists() and any(run.path.glob("picks/*.json")),
    "between two cells": lambda run: len(list(run.path.glob("cells/*.json"))) >= 3,
}


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_as_if_unbroken(small, tmp_path, cache):
    whole = run_embedded(small(*SLOWED), tmp_path / "whole", cache)
    hits = [kill_when(tmp_path / "broken", cache, condition) for condition in MOMENTS.values()]
    assert sum(hits) >= 5, dict(zip(MOMENTS, hits))
    last = start(tmp_path / "broken", cache)
    _, errors = last.communicate(timeout=240)
    assert last.returncode == 0, errors.decode()
    assert finished_text(RunDir(tmp_path / "broken")) == finished_text(whole)
    assert not list((tmp_path / "broken").rglob(".*.tmp"))  # what the kills left half-written is gone


def test_two_processes_cannot_share_a_run(small, tmp_path, cache):
    from cofal.errors import UserError

    run = RunDir(tmp_path / "run")
    with run.alone(), pytest.raises(UserError, match="another process"):
        run_embedded(small(), tmp_path / "run", cache)


def test_a_folder_that_held_no_run_in_the_end_is_as_it_was(tmp_path):
    for given in (tmp_path / "new" / "run", tmp_path):
        with RunDir(given).alone():
            assert (given / ".lock").exists()
        assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_taken_away_meanwhile_holds_nothing(tmp_path, monkeypatch):
    """Another process took the file away, between its opening here and its locking."""
    from cofal.errors import UserError

    def too_late(file, how, lock=fcntl.flock):
        (tmp_path / ".lock").unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with pytest.raises(UserError, match="another process"), RunDir(tmp_path).alone():
        pass


def test_another_configuration_in_the_same_folder_is_refused(small, tmp_path, cache):
    from cofal.errors import UserError

    run_embedded(small("train.rounds=1", "pretrain.rounds=1"), tmp_path / "run", cache)
    with pytest.raises(UserError, match="another configuration"):
        run_embedded(small("train.rounds=2", "pretrain.rounds=1"), tmp_path / "run", cache)


@pytest.mark.parametrize("extra", ["metrics.jsonl", "sites/notes.txt", "checkpoints/encoder.safetensors"])
def test_a_failed_run_keeps_its_folder_once_it_holds_work_or_a_file_of_others(small, tmp_path, cache, extra):
    run = RunDir(tmp_path / "run")

    def work():
        prepare(small(), run, cache)
        write_text(run.path / extra, "hours of work")

    assert "sites/site-2/rows.npy" in left_after(run, small(), work)
    assert (run.path / extra).read_text() == "hours of work"


def test_a_failure_in_a_folder_that_held_the_run_before_changes_nothing(small, tmp_path):
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.open(small())
    assert left_after(run, small(), lambda: None) == [".lock", "config.toml"]


def test_leftovers_are_swept_from_a_run_and_from_no_other_folder(small, tmp_path):
    gone = ".x.999999999-0123abcd.tmp"  # no process has that number
    for name in ("run", "home"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / gone).touch()
        (tmp_path / name / ".config.toml.999999999-0123abcd.tmp").touch()
    write_text(tmp_path / "run" / "config.toml", "")
    for name, left in (("run", []), ("home", [gone])):
        with RunDir(tmp_path / name).alone():
            assert [file.name for file in (tmp_path / name).rglob(".*.tmp")] == left


def left_after(run, config, work):
    """The files in the run's folder when it is stopped after `work`."""

    def stopped():
        with run.alone(), opened(run, config):
            work()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    return sorted(str(file.relative_to(run.path)) for file in run.path.rglob("*") if file.is_file())
