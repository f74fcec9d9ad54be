"""A phase as one Flower run: started through the SuperLink on loopback, followed to its end."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from pathlib import Path

from cofal.deploy import flower
from cofal.deploy.control_api import Away, Control
from cofal.deploy.processes import plain_line
from cofal.deploy.server_folder import ServerFolder
from cofal.errors import CofalError, EnvironmentFault, UserError

_FAILED = "ServerApp failed with exception: "
_AWAY = 120.0  # seconds the SuperLink may be away while a run is followed: it is started again when it dies


def is_up(folder: Path) -> bool:
    """Does a `cofal server up` hold this folder?"""
    try:
        with open(folder / ".up.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def run_phase(
    folder: Path, phase: str, *, tell: Callable[[str], None] = print, **options: str | int | float | bool
) -> None:
    """Run one phase on the server in `folder` and wait for its end; `tell` gets the ServerApp's lines as they come.

    `options` are keys of `flower.RUN_OPTIONS`, with `_` for `-`. Raises what the ServerApp raised, as a CofalError. The
    state is on disk: the same call after a failure goes on. Ctrl-C stops the run.
    """
    server = ServerFolder(folder.resolve())
    server.settings()
    if not is_up(server.path):
        raise UserError(f"the server in {folder} is not up; start it with cofal server up {folder}")
    given = {key.replace("_", "-"): value for key, value in options.items()}
    if unknown := set(given) - set(flower.RUN_OPTIONS):
        raise ValueError(f"a run has no option {', '.join(sorted(unknown))}")
    flower.prepare(server)
    with Control(server) as control:
        try:
            run = control.start(server.app, {"run-dir": str(server.path), "phase": phase, **given})
        except Away as error:
            raise EnvironmentFault(f"{phase} was not started: {error}; try again once it is ready") from None
        try:
            _follow(control, run, phase, tell)
        except KeyboardInterrupt:
            control.stop(run)
            raise


def _follow(control: Control, run: int, phase: str, tell: Callable[[str], None]) -> None:
    """Until the run is over, whatever happens to the stream of its lines."""
    last, seen = 0.0, time.monotonic()
    while True:
        try:
            for told_at, text in control.lines(run, last):
                last = told_at
                for line in text.splitlines():
                    if plain := plain_line(line):
                        tell(plain)
            state = control.state(run)
        except Away:
            if time.monotonic() - seen > _AWAY:
                raise EnvironmentFault(f"the server is away; once it is up, run {phase} again: it goes on") from None
            time.sleep(0.5)
            continue
        seen = time.monotonic()
        if state.status == "finished":
            if state.outcome == "completed":
                return
            raise CofalError(f"{phase}: {state.details.removeprefix(_FAILED) or f'it was {state.outcome}'}")
        time.sleep(0.2)
