"""The templates of docs/deploy: systemd takes the units as they are."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parents[2] / "docs" / "deploy").glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong_with_the_unit(unit, tmp_path):
    here = tmp_path / unit.name
    installed = str(Path(sys.executable).parent / "cofal")  # the program must be there
    here.write_text(unit.read_text().replace("/opt/cofal/bin/cofal", installed))
    done = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
