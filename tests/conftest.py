"""Shared fixtures: a run small enough to repeat many times."""

from pathlib import Path

import pytest

from cofal.config import load

SMALL = [
    "data.limit=240", "data.test_limit=120", "clients.count=3", "pretrain.rounds=3", "pretrain.probe_every=2",
    'selection.methods=["maxherding", "random"]', "selection.budgets=[6, 12]", "train.rounds=5",
]  # fmt: skip


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """Decoded images, kept for the whole session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small():
    """A configuration maker: the digits preset, shrunk to about a second a run, with further overrides on top."""
    return lambda *overrides: load("digits", [*SMALL, *overrides])
