"""A real federation on loopback for tests: `cofal server up` and `cofal client up` as processes, over TLS."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cofal.deploy.enrolment import enrol
from cofal.deploy.example import NAMES, write_example
from cofal.deploy.runs import run_phase
from cofal.deploy.server_folder import ServerFolder, ServerSettings, create_server, deployment_config
from cofal.deploy.site_folder import create_deployed_site, read_classes

# Small enough that a phase takes seconds.
SMALL = ["pretrain.rounds=2", "pretrain.local_epochs=1", "train.rounds=3", "engine.timeout=120"]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; held open together, so that they differ.

    Test processes side by side take theirs from different ports, since a port is free again until its server is up.
    """
    workers = int(os.getenv("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.getenv("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    sockets, ports = [], []
    try:
        while len(ports) < count:
            sockets.append(socket.socket())
            sockets[-1].bind(("127.0.0.1", 0))
            port = sockets[-1].getsockname()[1]
            if port // 2 % workers == mine:  # Linux gives even ones, or odd ones, while there are any
                ports.append(port)
        return ports
    finally:
        for each in sockets:
            each.close()


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll `true`; fail after `seconds`, saying what did not happen."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.03)


def processes_of(text: str) -> list[int]:
    """Ids of all processes whose command line holds `text` (a folder's path)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # all processes of a federation share this machine


class Running:
    """One `cofal` process and its log."""

    def __init__(self, arguments: list[str], log: Path, env: dict[str, str] | None = None):
        self.arguments, self.log, self._env = arguments, log, env or {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, **ONE_THREAD, **self._env}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cofal", *self.arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def said(self, text: str) -> int:
        """How often the log holds `text`."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 60) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"still alive {seconds:.0f} s after SIGTERM:\n{self.log.read_text()[-3000:]}"
            ) from None


class Federation:
    """A server and its sites below `base`; `start` runs all, `close` ends all."""

    def __init__(self, base: Path, *, sites: int = 3, per_site: int = 60, overrides: list[str] | None = None):
        self.base = base
        self.names = list(NAMES[:sites])
        self.port, control = free_ports(2)
        settings = ServerSettings(hosts=["localhost"], listen="127.0.0.1", port=self.port, control_port=control)
        config = deployment_config("digits-deployment", [*SMALL, *(overrides or [])])
        self.folder: ServerFolder = create_server(base / "server", settings, config)
        self.server = Running(["server", "up", str(self.folder.path)], base / "server.log")
        self.images = base / "images"
        if sites:
            write_example(self.images, sites, per_site, seed=0)
        self.sites = {name: self.add_site(name) for name in self.names}

    def add_site(self, name: str, *, images: str = "", enrolled: bool = True) -> Running:
        """Make a site (from another site's images, if `images` names one) and enrol it."""
        source = self.images / (images or name)
        create_deployed_site(
            self.base / name,
            name=name,
            images=source / "images",
            classes=read_classes(str(self.images / "classes.txt")),
            server=f"localhost:{self.port}",
            authority=self.folder.authority,
            test_images=source / "test",
        )
        if enrolled:
            enrol(self.folder.path, self.base / name / "site.pub", name)
        return Running(["client", "up", str(self.base / name)], self.base / f"{name}.log")

    def start(self) -> None:
        self.start_server()
        for site in self.sites.values():
            site.start()
        self.wait_connected()

    def start_server(self) -> None:
        before = self.server.said("ready:")
        self.server.start()
        wait_until(
            lambda: self.server.said("ready:") > before or not self.server.alive, 240, f"ready; see {self.server.log}"
        )
        assert self.server.alive, self.server.log.read_text()[-3000:]

    def wait_connected(self, *names: str, times: int = 1, seconds: float = 240) -> None:
        for name in names or self.names:
            site = self.sites[name]
            wait_until(lambda site=site: site.said("connected as node") >= times, seconds, f"{name} connected")

    def run(self, phase: str, **options: str | int | float | bool) -> list[str]:
        """Run a phase; the ServerApp's lines."""
        lines: list[str] = []
        run_phase(self.folder.path, phase, tell=lines.append, **{"sites": len(self.names), **options})
        return lines

    def close(self) -> None:
        for running in [*self.sites.values(), self.server]:
            if running.alive:
                running.kill()
