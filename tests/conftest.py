"""Shared fixtures."""

from pathlib import Path

import pytest

from cofal.config import load
from small_run import SMALL


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """Decoded images, kept for the whole session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small():
    """A configuration maker: the digits preset, shrunk to about a second a run, with further overrides on top."""
    return lambda *overrides: load("digits", [*SMALL, *overrides])
