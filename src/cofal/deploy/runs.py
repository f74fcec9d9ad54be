"""A phase as one Flower run: started through the SuperLink on loopback, followed to its end."""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Callable
from pathlib import Path

from cofal.deploy import flower
from cofal.deploy.control_api import Away, Control, RunState, Unreached
from cofal.deploy.processes import plain_line
from cofal.deploy.server_folder import ServerFolder
from cofal.errors import CofalError, EnvironmentFault, UserError

_FAILED, _RAISED = "ServerApp failed with exception: ", "ServerApp raised an exception"
_FLOWERS = re.compile(r"Start `flwr-serverapp`|Successfully installed")  # lines that say nothing to a person
_OURS = re.compile(r"cofal\.errors\.(\w+): ")
_KINDS: dict[str, type[CofalError]] = {kind.__name__: kind for kind in (UserError, EnvironmentFault)}
_AWAY = 120.0  # seconds the SuperLink may be away while a run is followed: it is started again when it dies


class NotStarted(UserError):
    """The phase has not begun: nothing was asked of anyone."""


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

    `options` are keys of `flower.RUN_OPTIONS`, with `_` for `-`. Raises NotStarted, or what the ServerApp raised, as a
    CofalError. The state is on disk: the same call after a failure goes on. Ctrl-C stops the run.
    """
    server = ServerFolder(folder.resolve())
    try:
        server.settings()
    except UserError as error:
        raise NotStarted(str(error)) from None
    if not is_up(server.path):
        raise NotStarted(f"the server in {folder} is not up; start it with cofal server up {folder}")
    given = {key.replace("_", "-"): value for key, value in options.items()}
    if unknown := set(given) - set(flower.RUN_OPTIONS):
        raise ValueError(f"a run has no option {', '.join(sorted(unknown))}")
    flower.prepare(server)
    with Control(server) as control:
        try:
            run = control.start(server.app, {"run-dir": str(server.path), "phase": phase, **given})
        except Unreached as error:
            raise NotStarted(f"{phase} was not started: {error}; try again once it is ready") from None
        except Away as error:
            raise EnvironmentFault(f"{phase} may not have started: {error}; try again once it is ready") from None
        try:
            _follow(control, run, phase, tell)
        except KeyboardInterrupt:
            control.stop(run)
            raise


def _follow(control: Control, run: int, phase: str, tell: Callable[[str], None]) -> None:
    """Until the run is over, whatever happens to the stream of its lines."""
    last, seen = 0.0, time.monotonic()
    trace: list[str] = []  # what was told after the ServerApp raised
    while True:
        try:
            for told_at, text in control.lines(run, last):
                last = told_at
                for line in filter(None, map(plain_line, text.splitlines())):
                    if trace or line == _RAISED:
                        trace.append(line)
                    elif not _FLOWERS.match(line):
                        tell(line)
            state = control.state(run)
        except Away:
            if time.monotonic() - seen > _AWAY:
                raise EnvironmentFault(f"the server is away; once it is up, run {phase} again: it goes on") from None
            time.sleep(0.5)
            continue
        seen = time.monotonic()
        if state.status == "finished":
            if state.outcome != "completed":
                raise _failure(phase, state, trace, tell)
            return
        time.sleep(0.2)


def _failure(phase: str, state: RunState, trace: list[str], tell: Callable[[str], None]) -> CofalError:
    """What the ServerApp raised, as it was; of an exception that is not ours, the whole trace is told."""
    raised = [found[1] for line in trace if (found := _OURS.match(line))]
    kind = _KINDS.get(raised[-1], CofalError) if raised else CofalError
    if trace and not raised:
        for line in trace:
            tell(line)
    reason = " ".join(state.details.removeprefix(_FAILED).split())
    if state.outcome == "stopped":  # by Ctrl-C elsewhere, or by a server that was killed and is up again
        reason = "it was stopped; run the same command again: it goes on"
    return kind(f"{phase}: {reason or f'it was {state.outcome}'}")
