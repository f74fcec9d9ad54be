"""Every name at smoke scale, in one command: what keeps all paths of `cofal reproduce` alive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_reproduce_run import pages, run

from cofal.reproduce.claims import CLAIMS
from cofal.reproduce.grid import experiment_names


@pytest.mark.smoke
@pytest.mark.timeout(900)  # three minutes on two free cores
def test_all_names_run_and_run_again_to_the_same_bytes(tmp_path: Path) -> None:
    done = run(tmp_path, "all", "--json", "--out", "out")
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)
    assert set(verdicts) == set(CLAIMS)
    for name in experiment_names():
        for kind in ("md", "csv", "png", "svg"):
            assert (tmp_path / "out" / "smoke" / f"{name}.{kind}").stat().st_size > 0, name
    index = (tmp_path / "out" / "README.md").read_text()
    assert "Not computed yet" not in index
    assert all(claim.text in index for claim in CLAIMS.values())
    # Digits are easy and their gap is wide: if central selection did not win here, something would be broken.
    assert verdicts["iid-gap"].startswith("holds")

    first = pages(tmp_path / "out")
    again = run(tmp_path, "all", "--json", "--out", "out")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == verdicts
    assert pages(tmp_path / "out") == first
