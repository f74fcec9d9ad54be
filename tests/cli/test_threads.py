"""Threads: those that wait for one another soon sleep instead of spinning, and how many there are does not change."""

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


COUNTED = """
import numpy as np
import cofal
from cofal.selection import select
import torch
counted = [torch.get_num_threads()]
rows = [np.random.default_rng(k).normal(size=(300, 8)) for k in range(2)]
for method, options in (("typiclust", {}), ("maxherding", {}), ("probcover", {"delta": "auto"})):
    select(rows, [3, 3], method, **options)
    counted.append(torch.get_num_threads())
print(counted)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_stays_what_it_was_set_to(threads: int) -> None:
    """The last digits of what is trained depend on it: a run in which it changes halfway is another run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    environment["OMP_NUM_THREADS"] = str(threads)
    done = subprocess.run([sys.executable, "-c", COUNTED], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([threads] * 4)
