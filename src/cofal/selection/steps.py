"""A progress bar for the steps of a selection, opened only when they take longer than two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from rich.progress import Progress

from cofal.progress import progress

PATIENCE = 2.0  # seconds of silence before a bar opens

_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)  # steps inside steps share one display


@contextmanager
def steps(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields `advance(count)`; the bar appears once two seconds have passed and closes with the block."""
    started, done = time.monotonic(), 0
    bars: Progress | None = None
    task = None
    with ExitStack() as stack:

        def advance(count: int) -> None:
            nonlocal bars, task, done
            done += count
            if bars is None and time.monotonic() - started > PATIENCE:
                bars = _shown.get()
                if bars is None:
                    bars = stack.enter_context(progress())
                    stack.callback(_shown.reset, _shown.set(bars))
                task = bars.add_task(title, total=total, note="")
                stack.callback(bars.remove_task, task)
            if bars is not None and task is not None:
                bars.update(task, completed=done)

        yield advance
