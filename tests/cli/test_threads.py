"""Commands share the machine with other work: threads that wait for one another soon sleep instead of spinning."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cofal.cli import SPINS

SCRIPT = """
import os, sys
import cofal.cli
assert "torch" not in sys.modules, "this is read when torch is loaded: too late"
sys.argv = ["cofal", "run", "--list"]
try:
    cofal.cli.main()
except SystemExit as end:
    assert end.code == 0
print("spins", os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("chosen", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise(chosen: dict[str, str], spins: str) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    script = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(script, env=environment | chosen, capture_output=True, text=True, check=True)
    assert f"spins {spins}" in done.stdout
