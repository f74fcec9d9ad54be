"""`cofal report` as a person calls it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cofal.config import load
from cofal.report.summary import print_settings


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from cofal.cli import main; sys.argv = ['cofal', *sys.argv[1:]]; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "report", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_it_writes_where_it_is_told(written_run, tmp_path):
    run = written_run()
    done = call(run.path, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not run.report.exists()


@pytest.mark.parametrize(
    ("gone", "said"),
    [("everything", "no run at"), ("config.toml", "holds no run"), ("results.json", "is not finished")],
)
def test_a_missing_or_unfinished_run_is_told_in_one_line(written_run, gone, said):
    run = written_run()
    if gone == "everything":
        folder = run.path / "nowhere"
    else:
        folder = run.path
        (folder / gone).unlink()
    done = call(folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert not run.report.exists()


def test_damaged_results_name_themselves(written_run):
    run = written_run()
    run.results.write_text("[{")
    done = call(run.path)
    assert done.returncode == 2
    assert str(run.results) in done.stderr


def test_the_plan_of_a_run_says_where_its_noise_goes(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ways = 'selection.coordination=["aggregate", "central", "per-client"]'
    print_settings(load("digits", [ways, "selection.epsilon=0.6"]), Path("out"))
    assert "aggregate, central, per-client; noise epsilon 0.6 for central\n" in re.sub(
        " +\n", "\n", capsys.readouterr().err
    )
