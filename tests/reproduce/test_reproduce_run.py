"""The command from end to end on digits: cells side by side, records kept, kills survived, a user's own selector."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COFAL = [sys.executable, "-m", "cofal", "reproduce"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
DEADLINE = 800


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COFAL, *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def until(condition: Callable[[], object], process: subprocess.Popen) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert process.poll() is None, "the command ended too early"
        assert time.monotonic() < end, "the command takes too long"
        time.sleep(0.05)


def workers_of(process: int) -> list[int]:
    """Processes that `process` has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            found.append(int(entry.parent.name))
    return found


def pages(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def whole_lines(file: Path) -> list[bytes]:
    return [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


MINE = """
import numpy as np

class MySelector:
    \"\"\"The first free rows of every client.\"\"\"

    def __call__(self, pool, budgets, rng):
        free = np.flatnonzero(~pool.labeled)
        return np.concatenate([free[pool.owner[free] == k][:b] for k, b in enumerate(budgets.per_client)])
"""


def here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *arguments: str
) -> tuple[int, str]:
    """The command in this process: its status and what it said on stderr."""
    from cofal.cli import main

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["cofal", "reproduce", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_theory_killed_resumed_and_made_again_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Kill -9 in the middle: whole records only, no worker left; the same command ends the work and repeats it."""
    results, records = tmp_path / "out", tmp_path / "out" / "smoke" / "records" / "digits.jsonl"
    command = ["theory", "--out", "out", "--encoders", "encoders"]
    process = subprocess.Popen([*COFAL, *command], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    until(lambda: records.exists() and len(whole_lines(records)) >= 3, process)
    workers = workers_of(process.pid)
    assert workers
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + DEADLINE
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < end, "a worker outlived its command"
        time.sleep(0.05)
    kept = whole_lines(records)
    with open(records, "ab") as file:
        file.write(kept[0][:100])  # as if a worker had been killed in the middle of a line
    finished = run(tmp_path, *command)
    assert finished.returncode == 0, finished.stderr
    assert f"42 cells, {len(kept)} of them done before" in finished.stderr
    assert whole_lines(records)[: len(kept)] == kept
    assert records.read_bytes().count(b"\n") == 42
    assert [file.name for file in records.parent.iterdir()] == [records.name]
    for kind in ("md", "csv", "png", "svg"):
        assert (results / "smoke" / f"theory.{kind}").stat().st_size > 0
    assert "theory.png" in (results / "README.md").read_text()

    first = pages(results)
    status, said = here(tmp_path, monkeypatch, capsys, *command)
    assert status == 0
    assert "cells" not in said  # nothing was computed
    assert pages(results) == first

    lines = whole_lines(records)
    records.write_bytes(b"".join([*lines[:4], lines[4][:100] + b"\n", *lines[5:]]))
    status, said = here(tmp_path, monkeypatch, capsys, *command)
    assert status == 2
    assert said.strip().count("\n") == 0
    assert "line 5 of " in said
    assert records.name in said
    assert "remove that line and run the command again" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_selector_in_one_file_appears_in_the_tables(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    done = run(tmp_path, "table-same-embedding", "--methods", "mine:MySelector", "--out", "out", "--encoders", "e")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out" / "smoke" / "table-same-embedding.md").read_text()
    assert "| MySelector, central |" in page
    assert "| MySelector, per-client |" in page
    assert "| ProbCover, central |" in page
    assert "--methods mine:MySelector" in page


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fig-alfa"], "did you mean 'fig-alpha'"),
        (["theory", "--scale", "big"], "unknown scale 'big'"),
        ([], "no name given"),
        (["theory", "--scale", "cpu", "--encoders", "e"], "--data is missing"),
        (["theory", "--scale", "cpu", "--data", "nowhere"], "nowhere is not a folder"),
        (["encoders", "--scale", "cpu"], "--data is missing"),
        (["encoders", "--scale", "cpu", "--data", "."], "has no cifar10"),
        (["encoders", "--scale", "cpu", "--set", "mnist"], "no encoders are trained for 'mnist'"),
        (["table-full-pipeline", "--scale", "cpu", "--encoders", "e", "--data", "."], "cofal reproduce encoders"),
        (["theory", "--set", "mnist"], "theory at scale smoke uses no set mnist"),
        (["theory", "--methods", "nothing"], "write it as module:Name"),
        (["theory", "--methods", "nothing:Here"], "no module 'nothing' here"),
        (["theory", "--methods", "json:Selector"], "json has no selector or system 'Selector'"),
    ],
)
def test_mistakes_are_one_line_with_the_remedy(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    status, error = here(tmp_path, monkeypatch, capsys, *arguments)
    assert status == 2
    assert told in error
    assert error.strip().count("\n") == 0
    assert not list(tmp_path.iterdir())  # nothing half-made is left
