"""Commands share the machine with other work: threads that wait for one another sleep instead of spinning."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import cofal.cli
assert "torch" not in sys.modules, "the policy is read when torch is loaded: too late"
sys.argv = ["cofal", "run", "--list"]
try:
    cofal.cli.main()
except SystemExit as end:
    assert end.code == 0
print("policy", os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.parametrize(("chosen", "holds"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(chosen: str | None, holds: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if chosen:
        environment["OMP_WAIT_POLICY"] = chosen
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert f"policy {holds}" in done.stdout
