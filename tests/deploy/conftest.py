"""Fixtures of the deployment's tests: a running federation that several tests share, and makers of private ones."""

from pathlib import Path

import pytest

from running_federation import Federation


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """One server and three sites, up and connected; for tests that leave them as they found them."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def make_federation(tmp_path):
    """Federations of a test's own, ended with it: `make_federation(sites=2, overrides=[...])`, not yet started."""
    made = []

    def make(**options) -> Federation:
        folder: Path = tmp_path / f"federation-{len(made)}"
        folder.mkdir()
        made.append(Federation(folder, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
