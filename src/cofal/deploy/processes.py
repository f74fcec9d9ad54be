"""Child processes that live and die with their parent: started, logged, started again, stopped as a group."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("cofal")

_PR_SET_PDEATHSIG = 1
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_LONGEST_PAUSE = 30.0
_NOISE = re.compile(r'"POST /v1/\S+ HTTP/1\.1" 200|\[Fleet\.PushMessages\]')  # a line for every poll and every answer
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"^(?:INFO|DEBUG|WARNING|ERROR) ?:\s*")
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Run in a child before it becomes the program: the kernel kills it when its parent dies, even by kill -9."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def plain_line(line: str) -> str:
    """A line of Flower's log without its colours and its own level."""
    return _LEVEL.sub("", _COLOUR.sub("", line)).rstrip()


class Child:
    """One program, kept running until `stop`."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path):
        self.name, self._command, self._env, self._cwd = name, command, dict(env), cwd
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_running(), name=self.name)

    async def stop(self) -> None:
        """SIGTERM to the program and all it started, then SIGKILL to what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process = self._process
        if process is None:
            return
        for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await process.wait()
                    if number == signal.SIGTERM:
                        await _group_gone(process.pid)

    async def _keep_running(self) -> None:
        pause = 0.5
        while True:
            began = time.monotonic()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._env,
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to us alone, and the program's own children share its group
                preexec_fn=die_with_parent,
                limit=1 << 20,
            )
            await self._tell()
            status = await self._process.wait()
            with suppress(ProcessLookupError):  # what it left behind would hold ports and files
                os.killpg(self._process.pid, signal.SIGKILL)
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause = 0.5
            log.error("%s ended with status %d; started again in %.1f s", self.name, status, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _tell(self) -> None:
        """Pass the program's output on, line by line."""
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # a line longer than the limit
                continue
            if not line:
                return
            text = plain_line(line.decode("utf-8", "replace"))
            if text and not _NOISE.search(text):
                log.info("%s: %s", self.name, text)


async def _group_gone(group: int) -> None:
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.05)
