"""kill -9 in every phase, of sites and of the server, and again and again: the run ends as if undisturbed."""

import itertools
import os
import random

import pytest

from cofal.files import read_json
from cofal.rundir import MAIN

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

PLAN = ["pretrain", "embed", "select", "label", "train"]


@pytest.mark.parametrize("victim", ["site", "server"])
def test_killed_in_every_phase_the_run_ends_as_if_undisturbed(hurt, victim):
    faulty, expected = hurt(plan=PLAN, per_site=40)
    victims = itertools.cycle(faulty.made.names)
    for phase in PLAN:
        if phase == "label":
            faulty.label_all()
            continue
        fault = (lambda: faulty.kill_site(next(victims))) if victim == "site" else faulty.kill_server
        faulty.disturbed(phase, fault)
        faulty.check()
    assert faulty.outcome() == expected


@pytest.mark.slow
def test_many_faults_in_a_row_lose_nothing(hurt):
    """As many faults as COFAL_SOAK_FAULTS says; `make soak` does 30."""
    count = int(os.environ.get("COFAL_SOAK_FAULTS", "5"))
    chance = random.Random(6)
    faulty, _ = hurt("train.rounds=2", plan=None)
    phases = ["pretrain", *(phase for _ in range(count) for phase in ("select", "train"))][:count]
    asked: dict[str, list[str]] = {}
    for phase in phases:
        name = chance.choice(faulty.made.names)
        fault = faulty.kill_server if chance.random() < 0.3 else lambda name=name: faulty.kill_site(name)
        faulty.disturbed(phase, fault)
        if phase == "select":
            faulty.label_all()
        faulty.check()
        for site in faulty.made.names:
            now = faulty.asked(site)
            assert now[: len(asked.get(site, []))] == asked.get(site, [])
            asked[site] = now
    selections = phases.count("select")
    assert sum(map(len, asked.values())) == 6 * selections
    assert [step["number"] for step in read_json(faulty.run.picks(MAIN))["steps"]] == list(range(1, selections + 1))
