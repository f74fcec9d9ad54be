"""Noised versions: drawn once, sent again as they were, limited in number. Policies: what a permission includes."""

import multiprocessing
import zlib

import numpy as np
import pytest
from pydantic import ValidationError

from cofal.errors import UserError
from cofal.privacy.perturbation import perturb
from cofal.privacy.policy import Kind, Policy
from cofal.privacy.releases import SEEDED, SYSTEM, Releases, Version
from cofal.rng import generator

ROWS = (
    np.eye(40, 16, dtype=np.float32) + np.eye(40, 16, k=-16, dtype=np.float32) + np.eye(40, 16, k=-32, dtype=np.float32)
)


def version(digest="ab", epsilon=0.6, noise=SYSTEM) -> Version:
    return Version(digest, epsilon, "tangent", noise)


def test_noise_from_the_system_is_kept_and_no_seed_brings_it_back(tmp_path):
    here, elsewhere = Releases(tmp_path / "a"), Releases(tmp_path / "b")
    first = np.array(here.get("site", version(), ROWS, 7, 1))
    assert np.array_equal(here.get("site", version(), ROWS, 8, 1), first)
    assert not np.allclose(elsewhere.get("site", version(), ROWS, 7, 1), first)
    assert abs(np.linalg.norm(first - ROWS, axis=1).mean() - 0.6) < 0.1


def test_seeded_noise_is_that_of_the_seed_and_the_first_seed_stays(tmp_path):
    releases = Releases(tmp_path / "a")
    expected = perturb(ROWS, 0.6, generator(7, "perturb", "site"))
    assert np.array_equal(releases.get("site", version(noise=SEEDED), ROWS, 7, 1), expected)
    assert np.array_equal(releases.get("site", version(noise=SEEDED), ROWS, 8, 1), expected)


@pytest.mark.parametrize("other", [version("cd"), version(epsilon=0.7), version(noise=SEEDED)])
def test_another_version_is_refused_beyond_the_limit(tmp_path, other):
    releases = Releases(tmp_path / "a")
    releases.get("site", version(), ROWS, 0, 1)
    with pytest.raises(UserError, match="max_releases"):
        releases.get("site", other, ROWS, 0, 1)
    assert not releases.has(other)
    releases.get("site", other, ROWS, 0, 2)
    assert releases.has(other)


def _draw(folder, pipe) -> None:
    pipe.send(zlib.crc32(np.array(Releases(folder).get("site", version(), ROWS, 0, 1)).tobytes()))


def test_processes_asked_at_once_send_the_same(tmp_path):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    children = [context.Process(target=_draw, args=(tmp_path / "a", theirs)) for _ in range(4)]
    for child in children:
        child.start()
    assert len({ours.recv() for _ in children}) == 1
    for child in children:
        child.join()


def test_a_permission_includes_what_could_be_computed_from_it():
    allowed = Policy(allow=["aggregate", "model"]).allowed
    assert {Kind.AGGREGATE, Kind.SECURE_SUM, Kind.MODEL, Kind.DESCRIPTION, Kind.METRIC, Kind.NOTHING} == allowed
    assert Policy(allow=["raw", "model"]).allowed == set(Kind)
    assert Policy(allow=[]).allowed == {Kind.DESCRIPTION, Kind.METRIC, Kind.NOTHING}
    assert Policy().allowed == allowed  # the default lets out nothing about a single sample


@pytest.mark.parametrize(
    ("policy", "kind", "epsilon", "key"),
    [
        (Policy(), Kind.RAW, 0.0, "policy.allow"),
        (Policy(), Kind.PERTURBED, 1.0, "policy.allow"),
        (Policy(), Kind.IDS, 0.0, "policy.allow"),
        (Policy(allow=["perturbed"], min_epsilon=0.5), Kind.PERTURBED, 0.4, "policy.min_epsilon"),
        (Policy(allow=["perturbed"], min_epsilon=0.5), Kind.PERTURBED, float("nan"), "policy.min_epsilon"),
        (Policy(allow=["raw"], min_epsilon=0.5), Kind.RAW, 0.0, "policy.min_epsilon"),
    ],
)
def test_a_refusal_names_the_key_of_the_policy(policy, kind, epsilon, key):
    with pytest.raises(UserError, match=key) as refusal:
        policy.check("north", kind, epsilon)
    assert "north" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"allow": ["everything"]},
        {"allow": ["perturbed"]},
        {"min_epsilon": float("nan")},
        {"min_epsilon": 2},
        {"alow": []},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError):
        Policy.model_validate(wrong)
