"""Faults done to real processes: lost sites, full disks, a taken name, wrong clocks (kills: test_kills.py)."""

import resource
from pathlib import Path

import pytest

from cofal.federation.site import open_site
from cofal.rundir import MAIN
from faulty_federation import Faulty
from running_federation import Federation, Running, processes_of, wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tolerant(tmp_path_factory):
    """Three sites of which two are enough, with an encoder; every test leaves all three up."""
    made = Federation(
        tmp_path_factory.mktemp("tolerant"), per_site=40, overrides=["engine.min_clients=2", "engine.timeout=12"]
    )
    try:
        made.start()
        faulty = Faulty(made)
        faulty.do("pretrain")
        yield faulty
    finally:
        made.close()


def test_a_site_that_never_comes_back_is_named_and_catches_up_later(tolerant):
    made, lost = tolerant.made, tolerant.made.names[1]
    others = [name for name in made.names if name != lost]
    before = {name: tolerant.asked(name) for name in made.names}
    # Gone in the middle of a phase, by kill -9, and away in all that follows.
    command = tolerant.begin("select")
    if tolerant.under_way("select", command):
        made.sites[lost].kill()
    told = tolerant.finish("select", command)
    assert list(told["missing"]) == [lost]
    assert sum(told["sites"].get(name, 0) for name in others) == 6
    tolerant.label_all()
    told = tolerant.do("train")
    assert list(told["missing"]) == [lost]
    connected = made.sites[lost].said("connected as node")
    made.sites[lost].start()
    made.wait_connected(lost, times=connected + 1)
    told = tolerant.do("select")
    assert told["missing"] == {}
    tolerant.check()
    more = {name: len(tolerant.asked(name)) - len(before[name]) for name in made.names}
    assert sum(more.values()) == 12
    assert max(more.values()) - min(more.values()) <= 1  # the one that was away has caught up
    tolerant.label_all()


def test_a_second_client_under_a_taken_name_is_refused_and_both_are_named(tolerant):
    made, taken = tolerant.made, tolerant.made.names[0]
    twin = made.add_site("twin", images=taken, enrolled=True)
    settings = made.base / "twin" / "site.toml"
    settings.write_text(settings.read_text().replace('name = "twin"', f'name = "{taken}"'))
    twin.start()
    try:
        wait_until(lambda: twin.said("connected as node") > 0, 120, "the twin is connected")
        told = [line for line in made.run("progress") if "call themselves" in line]
        assert len(told) == 1
        assert repr(taken) in told[0]
        before = tolerant.asked(taken)
        assert tolerant.do("select")["sites"].keys() <= set(made.names)
        assert open_site(made.base / "twin").asked(MAIN) == []
        assert tolerant.asked(taken)[: len(before)] == before
    finally:
        twin.stop()
        (made.folder.path / "enrolled" / "twin.pub").unlink()
    tolerant.label_all()
    tolerant.check()


def test_a_full_disk_at_a_site_is_told_and_nothing_is_lost(tolerant):
    made, name = tolerant.made, tolerant.made.names[2]
    process = made.sites[name].process
    assert process is not None
    with disk_full(process.pid):
        told = tolerant.do("select")
        assert list(told["missing"]) == [name]
        assert "cannot be written" in told["missing"][name]
    tolerant.check()
    tolerant.label_all()
    told = tolerant.do("select")  # the same process, now that there is space again
    assert told["missing"] == {}
    tolerant.label_all()
    tolerant.check()


def test_a_full_disk_at_the_server_is_told_and_nothing_is_lost(tolerant):
    made = tolerant.made
    before, number = {name: tolerant.asked(name) for name in made.names}, tolerant.selections()
    (superexec,) = [
        process
        for process in processes_of(str(made.folder.path))
        if b"flower-superexec" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]
    with disk_full(superexec):  # and so for the ServerApp that it starts
        command = tolerant.begin("select")
        assert command.process is not None
        assert command.process.wait(300) == 1
        assert "Traceback" not in command.log.read_text()
    assert {name: tolerant.asked(name) for name in made.names} == before
    assert tolerant.do("select")["number"] == number + 1
    tolerant.check()
    tolerant.label_all()


class disk_full:
    """Within the block every write to a file fails for that process and those it starts, as on a full disk."""

    def __init__(self, process: int):
        self._process = process
        self._soft, self._hard = resource.prlimit(process, resource.RLIMIT_FSIZE)

    def __enter__(self) -> None:
        resource.prlimit(self._process, resource.RLIMIT_FSIZE, (1, self._hard))

    def __exit__(self, *_: object) -> None:
        resource.prlimit(self._process, resource.RLIMIT_FSIZE, (self._soft, self._hard))


def test_a_clock_an_hour_off_does_not_matter(hurt):
    plan = ["pretrain", "select"]
    faulty, expected = hurt(plan=plan, per_site=40)
    for name, seconds in zip(faulty.made.names, (-3600, 3600)):
        site = faulty.made.sites[name]
        site.stop()
        wrong = {"PYTHONPATH": str(TESTS / "skewed_clock"), "COFAL_TEST_CLOCK": str(seconds)}
        faulty.made.sites[name] = Running(site.arguments, site.log, env=wrong)
        faulty.made.sites[name].start()
    faulty.made.wait_connected(*faulty.made.names[:2], times=2)
    for phase in plan:
        faulty.do(phase)
    faulty.check()
    assert faulty.outcome() == expected
    for name in faulty.made.names[:2]:
        assert faulty.made.sites[name].said("this machine's clock is 3") == 1  # 3600 s, give or take one
