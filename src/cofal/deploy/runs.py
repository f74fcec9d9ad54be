"""A phase as one Flower run: started through Flower's own command line on loopback, followed to its end."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cofal.deploy import flower
from cofal.deploy.processes import die_with_parent, plain_line
from cofal.deploy.server_folder import CONNECTION, ServerFolder
from cofal.errors import CofalError, EnvironmentFault, UserError

_STARTED = re.compile(r"Successfully started run (\d+)")
_FAILED = "ServerApp failed with exception: "
_AWAY = 60.0  # seconds the SuperLink may be away while a run is followed


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
    given = {"run-dir": str(server.path), "phase": phase} | {
        key.replace("_", "-"): value for key, value in options.items()
    }
    if unknown := set(given) - set(flower.RUN_OPTIONS):
        raise ValueError(f"a run has no option {', '.join(sorted(unknown))}")
    flower.prepare(server)
    settings = [part for key, value in given.items() for part in ("-c", f"{key}={json.dumps(value)}")]
    run = _follow(server, ["run", str(server.app), CONNECTION, "--stream", *settings], tell)
    if run is None:
        raise EnvironmentFault(f"the phase {phase} could not be started; see the lines above and those of the server")
    try:
        _wait(server, run, phase, tell)
    except KeyboardInterrupt:
        _flwr(server, "stop", run, CONNECTION)
        raise


def _wait(server: ServerFolder, run: str, phase: str, tell: Callable[[str], None]) -> None:
    """Until the run is over, whatever happens to the stream of its lines."""
    seen = time.monotonic()
    while True:
        facts = run_facts(server, run)
        if facts is None:
            if time.monotonic() - seen > _AWAY:
                raise EnvironmentFault(f"the server is away; when it is up again, run {phase} again: it goes on")
            time.sleep(1)
            continue
        seen = time.monotonic()
        status, details = facts["status"], str(facts["status-details"])
        if status == "finished:completed":
            return
        if status.startswith("finished"):
            reason = details.removeprefix(_FAILED) or f"it was {status.partition(':')[2]}"
            raise CofalError(f"{phase}: {reason}")
        _follow(server, ["log", run, CONNECTION, "--stream"], tell)


def run_facts(server: ServerFolder, run: str) -> dict[str, Any] | None:
    """What Flower knows of a run: status, details, times; None while the SuperLink cannot be asked."""
    done = _flwr(server, "list", CONNECTION, "--run-id", run, "--format", "json")
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout[done.stdout.index("{") :])["runs"]
        return found[0]
    except (ValueError, KeyError, IndexError):
        return None


def _flwr(server: ServerFolder, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [flower.program("flwr"), *arguments],
        env=flower.environment(server),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _follow(server: ServerFolder, arguments: list[str], tell: Callable[[str], None]) -> str | None:
    """Pass on the lines of a `flwr` command; the id of the run it started, if it says so."""
    run = None
    with subprocess.Popen(
        [flower.program("flwr"), *arguments],
        env=flower.environment(server),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=die_with_parent,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                text = plain_line(line)
                if started := _STARTED.search(text):
                    run = started[1]
                elif text and "logstream" not in text:
                    tell(text)
        except BaseException:
            process.terminate()
            raise
    return run
