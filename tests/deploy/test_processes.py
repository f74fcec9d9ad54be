"""Processes that end, are killed, are started twice: what is left, what comes back, what is told."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cofal.deploy.certificates import create_server_certificate
from cofal.deploy.control_api import Control
from cofal.deploy.runs import NotStarted, run_phase
from cofal.deploy.server_folder import ServerFolder, renew_certificate
from cofal.errors import UserError
from running_federation import Federation, free_ports, processes_of, wait_until


def child(federation: Federation, program: str) -> int:
    """The process id of a program that the server started."""
    found = [
        process
        for process in processes_of(str(federation.folder.path))
        if program.encode() in Path(f"/proc/{process}/cmdline").read_bytes()
    ]
    assert len(found) == 1, found
    return found[0]


def test_a_second_server_or_site_in_the_same_folder_is_refused(federation):
    site = federation.base / federation.names[0]
    for arguments in (["server", "up", str(federation.folder.path)], ["client", "up", str(site)]):
        done = subprocess.run(
            [sys.executable, "-m", "cofal", *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 2
        assert "stop it first" in done.stderr
        assert "Traceback" not in done.stderr


def test_flower_s_processes_are_started_again_when_they_die(federation):
    for program in ("flower-superexec", "cofal.deploy.superlink"):
        before = child(federation, program)
        ended = federation.server.said("ended with status")
        os.kill(before, signal.SIGKILL)
        wait_until(lambda ended=ended: federation.server.said("ended with status") > ended, 60, f"{program} missed")
        wait_until(lambda program=program: _is_new(federation, program, before), 120, f"{program} again")  # noqa: B023
    wait_until(lambda: _online(federation) == len(federation.names), 120, "all sites connected again")


def _is_new(federation: Federation, program: str, before: int) -> bool:
    try:
        return child(federation, program) != before
    except (AssertionError, OSError):
        return False


def _online(federation: Federation) -> int:
    from cofal.errors import CofalError

    try:
        with Control(federation.folder) as control:
            return sum(node.online for node in control.nodes())
    except CofalError:
        return 0


@pytest.mark.deploy
def test_nothing_is_left_of_a_server_that_stops_or_is_killed(make_federation):
    made = make_federation(sites=1, per_site=20)
    made.start_server()
    assert len(processes_of(str(made.folder.path))) >= 3
    assert made.server.stop() == 0
    assert processes_of(str(made.folder.path)) == []
    made.start_server()
    made.server.kill()
    wait_until(lambda: processes_of(str(made.folder.path)) == [], 20, "no orphan")
    made.start_server()  # at once, on the same ports
    assert made.server.stop() == 0


@pytest.mark.deploy
def test_a_site_that_is_killed_comes_back_under_its_name_at_once_and_one_that_stops_says_so(make_federation):
    made = make_federation(sites=1, per_site=20)
    made.start()
    site = made.sites["north"]
    site.kill()
    site.start()
    made.wait_connected(times=2)
    assert site.said("trying again") == 0  # the server did not have to lose patience with the killed process
    assert site.stop() == 0
    assert _online(made) == 0
    site.start()
    made.wait_connected(times=3)


def test_a_phase_needs_a_server_that_is_up(tmp_path, federation):
    from cofal.config import load
    from cofal.deploy.server_folder import ServerSettings, create_server

    create_server(tmp_path / "server", ServerSettings(hosts=["localhost"]), load("digits"))
    with pytest.raises(UserError, match="not up"):
        run_phase(tmp_path / "server", "pretrain")
    with pytest.raises(ValueError, match="no option colour"):
        run_phase(federation.folder.path, "pretrain", colour="blue")


def test_an_order_that_never_began_is_taken_back(tmp_path):
    """Server down, server not ready: the next selection is a new one, of its own budget."""
    from typer.testing import CliRunner

    from cofal.cli import app
    from cofal.deploy.server_folder import ServerSettings, create_server, deployment_config
    from cofal.federation.orders import open_order

    settings = ServerSettings(hosts=["localhost"], control_port=free_ports(1)[0])
    made = create_server(tmp_path / "server", settings, deployment_config("digits-deployment", []))

    def select(budget: int) -> str:
        done = CliRunner().invoke(app, ["server", "select", str(made.path), "--budget", str(budget)])
        assert isinstance(done.exception, NotStarted)
        assert open_order(made, "select") is None
        return str(done.exception)

    assert "is not up" in select(10)
    with open(made.path / ".up.lock", "w") as lock:  # as a server that is about to start
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "try again once it is ready" in select(12)


def test_folders_are_made_once(tmp_path, federation):
    from typer.testing import CliRunner

    from cofal.cli import app

    runner = CliRunner()
    again = runner.invoke(app, ["server", "init", str(federation.folder.path), "--host", "localhost"])
    assert isinstance(again.exception, UserError)
    assert "not empty" in str(again.exception)
    site = federation.base / federation.names[0]
    source = federation.images / federation.names[0] / "images"
    options = ["--images", source, "--classes", "a,b", "--server", "x:1", "--ca", federation.folder.authority]
    again = runner.invoke(app, ["client", "init", *map(str, [site, *options])])
    assert isinstance(again.exception, UserError)
    assert "not empty" in str(again.exception)


def test_a_renewed_certificate_comes_from_the_same_authority_and_its_key_stays_private(federation, tmp_path):
    import shutil

    copied = ServerFolder(shutil.copytree(federation.folder.path, tmp_path / "copy", ignore=_no_sockets))
    before = copied.certificate.read_bytes()
    renew_certificate(copied, ["cofal.example.org"])
    assert copied.certificate.read_bytes() != before
    assert copied.key.stat().st_mode & 0o077 == 0
    assert copied.settings().hosts == ["cofal.example.org"]
    with pytest.raises(UserError, match="neither a host name"):
        create_server_certificate(
            tmp_path / "c", tmp_path / "k", copied.authority, copied.authority_key, ["https://x.org:1"]
        )


def _no_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith((".", "state.db"))]
