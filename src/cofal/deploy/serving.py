"""`cofal server up`: SuperLink and SuperExec on loopback, the public port in front, all in one foreground process."""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import logging
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from cofal.deploy import flower
from cofal.deploy.certificates import expiry
from cofal.deploy.control_api import Control
from cofal.deploy.enrolment import keep_registering
from cofal.deploy.processes import Child
from cofal.deploy.public_port import PublicPort
from cofal.deploy.server_folder import ServerFolder
from cofal.errors import CofalError, EnvironmentFault, UserError

log = logging.getLogger("cofal")

_START = 120.0  # seconds the SuperLink may take to listen
_VANISH = 5.0  # seconds
_WARN_DAYS = 30


def run_server(folder: Path) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    server = ServerFolder(folder.resolve())
    settings = server.settings()
    left = expiry(server.certificate) - datetime.datetime.now(datetime.UTC)
    if left.total_seconds() < 0:
        raise UserError(f"{server.certificate} has expired; make a new one with cofal server renew {folder}")
    if left.days < _WARN_DAYS:
        log.warning("the certificate expires in %d days; cofal server renew %s makes a new one", left.days, folder)
    with _alone(server):
        for host, port in (("127.0.0.1", settings.control_port), (settings.listen, settings.port)):
            _wait_free(host, port)
        flower.prepare(server)
        uvloop.run(_serve(server))  # TLS in and out of the public port takes half as long as with asyncio's own loop


async def _serve(server: ServerFolder) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    settings, environment = server.settings(), flower.environment(server)
    superlink = Child("superlink", flower.superlink(server), environment, server.path)
    superexec = Child("superexec", flower.superexec(server), environment, server.path)
    port = PublicPort(server)
    try:
        superlink.start()
        await _listening(settings.control_port, stop)
        await asyncio.to_thread(_end_old_runs, server)
        superexec.start()
        await port.start()
        log.info("ready: sites reach %s:%d; nothing else is open", settings.hosts[0], settings.port)
        registering = asyncio.create_task(keep_registering(server))
        await stop.wait()
        registering.cancel()
        log.info("stopping")
    finally:
        await port.stop()
        await asyncio.gather(superexec.stop(), superlink.stop())


def _end_old_runs(server: ServerFolder) -> None:
    """Runs of a server that was killed died with it; the SuperLink would wait for their heartbeats for a minute."""
    try:
        with Control(server) as control:
            for run in control.under_way():
                control.stop(run)
    except CofalError as error:  # as after a stop in peace: there may be nothing to end
        log.warning("cannot end the runs of the server before this one: %s", error)


async def _listening(port: int, stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_START):
            while not stop.is_set():
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.1)
                else:
                    writer.close()
                    return
    except TimeoutError:
        raise EnvironmentFault(f"the SuperLink does not listen after {_START:.0f} s; see its lines above") from None


@contextmanager
def _alone(server: ServerFolder) -> Iterator[None]:
    with open(server.path / ".up.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"a server runs in {server.path} already; stop it first") from None
        yield


def _wait_free(host: str, port: int) -> None:
    """Until the port can be had: the processes of a killed server need a moment to vanish."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + _VANISH
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"cannot listen on {host}:{port}: {error.strerror}; choose another in server.toml"
                    ) from None
        time.sleep(0.1)
