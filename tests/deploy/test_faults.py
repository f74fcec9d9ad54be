"""kill -9 of a site and of the server in every phase, a site that never comes back, a full disk, a wrong clock."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from cofal.federation.site import open_site
from cofal.files import read_json
from cofal.rundir import MAIN
from faulty_federation import Faulty, undisturbed
from running_federation import Running, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

PLAN = ["pretrain", "embed", "select", "label", "train", "select", "label", "train"]


@pytest.fixture
def hurt(make_federation, tmp_path):
    """A started federation of three sites, and the outcome of the same phases in peace."""

    def make(*overrides, plan=PLAN, **options):
        made = make_federation(overrides=list(overrides), **options)
        expected = undisturbed(made, plan, tmp_path / "peace") if plan else None
        made.start()
        return Faulty(made), expected

    return make


@pytest.mark.parametrize("victim", ["site", "server"])
def test_killed_in_every_phase_the_run_ends_as_if_undisturbed(hurt, victim):
    faulty, expected = hurt()
    victims = iter([*faulty.made.names] * 3)
    for phase in PLAN:
        if phase == "label":
            faulty.label_all()
            continue
        fault = (lambda: faulty.kill_site(next(victims))) if victim == "site" else faulty.kill_server
        faulty.disturbed(phase, fault)
        faulty.check()
    assert faulty.outcome() == expected


def test_a_site_that_never_comes_back_is_named_and_catches_up_later(hurt):
    faulty, _ = hurt("engine.min_clients=2", "engine.timeout=15", plan=None)
    names = faulty.made.names
    faulty.do("pretrain")
    lost = names[1]
    faulty.made.sites[lost].stop()
    told = faulty.do("select")
    assert list(told["missing"]) == [lost]
    assert told["sites"] == {names[0]: 3, names[2]: 3}
    faulty.label_all()
    assert list(faulty.do("train")["missing"]) == [lost]
    faulty.made.sites[lost].start()
    faulty.made.wait_connected(lost, times=2)
    told = faulty.do("select")
    assert (told["missing"], told["sites"]) == ({}, {names[0]: 1, lost: 4, names[2]: 1})
    faulty.check()


def test_a_second_client_under_a_taken_name_is_refused_and_both_are_named(hurt):
    faulty, _ = hurt("engine.timeout=20", plan=None)
    made = faulty.made
    faulty.do("pretrain")
    twin = made.add_site("twin", images=made.names[0], enrolled=True)
    settings = made.base / "twin" / "site.toml"
    settings.write_text(settings.read_text().replace('name = "twin"', f'name = "{made.names[0]}"'))
    twin.start()
    made.sites["twin"] = twin
    wait_until(lambda: twin.said("connected as node") > 0, 120, "the twin is connected")
    lines = made.run("progress")
    told = [line for line in lines if "call themselves" in line]
    assert len(told) == 1
    assert made.names[0] in told[0]
    assert set(read_json(faulty.run.status)["sites"]) == set(made.names)


def test_a_full_disk_at_a_site_is_told_and_nothing_is_lost(hurt):
    faulty, _ = hurt("engine.timeout=60", plan=None)
    made, name = faulty.made, faulty.made.names[0]
    faulty.do("pretrain")
    made.sites[name].stop()
    # No file of this site may grow beyond what its ledger has now: as if the disk were full.
    limit = (made.base / name / "ledger.jsonl").stat().st_size + 50
    full = Running(made.sites[name].arguments, made.base / "full.log")
    _start_limited(full, limit)
    wait_until(lambda: full.said("connected as node") > 0, 120, "the site with the full disk is connected")
    command = faulty.begin("select")
    assert command.process.wait(300) == 1
    assert name in command.log.read_text()
    full.kill()
    made.sites[name].start()
    made.wait_connected(name, times=2)
    told = faulty.do("select")
    assert told["number"] == 1
    assert sum(told["sites"].values()) == 6
    faulty.check()


def _start_limited(running, limit):
    """Start a process that cannot write a file beyond `limit` bytes, as when the disk is full."""
    with open(running.log, "ab") as log:
        running.process = subprocess.Popen(
            ["/bin/sh", "-c", f"ulimit -f {limit // 512 + 1}; exec \"$@\"", "sh", sys.executable, "-m", "cofal",
             *running.arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_clock_an_hour_off_does_not_matter(hurt, seconds):
    plan = ["pretrain", "select", "label", "train"]
    faulty, expected = hurt(plan=plan)
    name = faulty.made.names[0]
    site = faulty.made.sites[name]
    site.stop()
    skewed = Path(__file__).parent.parent / "skewed_clock"
    wrong = Running(site.arguments, site.log, env={"PYTHONPATH": str(skewed), "COFAL_TEST_CLOCK": str(seconds)})
    wrong.start()
    faulty.made.sites[name] = wrong
    for phase in plan:
        if phase == "label":
            faulty.label_all()
        else:
            faulty.do(phase)
    faulty.check()
    assert faulty.outcome() == expected


def test_many_faults_in_a_row_lose_nothing(hurt):
    """30 faults by default in `make test-faults`; COFAL_SOAK_FAULTS sets the number for a quicker run."""
    count = int(os.environ.get("COFAL_SOAK_FAULTS", "30"))
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
            now = open_site(faulty.made.base / site).asked(MAIN)
            assert now[: len(asked.get(site, []))] == asked.get(site, [])
            asked[site] = now
    selections = phases.count("select")
    assert sum(map(len, asked.values())) == 6 * selections
    assert [step["number"] for step in read_json(faulty.run.picks(MAIN))["steps"]] == list(range(1, selections + 1))
