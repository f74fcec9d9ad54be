"""Fixtures of the deployment's tests: a running federation that several tests share, and makers of private ones."""

from pathlib import Path

import pytest

from faulty_federation import Faulty, undisturbed
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


@pytest.fixture
def hurt(make_federation, tmp_path):
    """A started federation of three sites, and the outcome of the same phases in peace."""

    def make(*overrides, plan, **options):
        made = make_federation(overrides=list(overrides), **options)
        expected = undisturbed(made, plan, tmp_path / "peace") if plan else None
        made.start()
        return Faulty(made), expected

    return make
