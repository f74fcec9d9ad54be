"""Shared fixtures."""

import signal
from pathlib import Path

import pytest

from cofal.config import load
from small_run import SMALL

# A shell gives its background jobs SIGINT ignored, and their children inherit that; with a handler of our own the
# processes that tests start hear Ctrl-C wherever the tests run.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """Decoded images, kept for the whole session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small():
    """A configuration maker: the digits preset, shrunk to about a second a run, with further overrides on top."""
    return lambda *overrides: load("digits", [*SMALL, *overrides])
