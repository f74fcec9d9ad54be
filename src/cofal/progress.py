"""Progress bars with time left, on stderr, shown only to a person at a terminal; silent elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """A Rich progress display, which `bar` finds wherever it is called inside the block."""
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=quiet or not (console.is_terminal and sys.stderr.isatty()),
    )
    with bars:
        token = _shown.set(bars)
        try:
            yield bars
        finally:
            _shown.reset(token)


class Bar:
    """One line of the display; does nothing where no display is open."""

    def __init__(self, title: str, total: int, done: int):
        self._bars = _shown.get()
        self._task = self._bars.add_task(title, total=total, completed=done, note="") if self._bars else None

    def advance(self, note: str = "", steps: int = 1) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, advance=steps, note=note)


def bar(title: str, total: int, done: int = 0) -> Bar:
    """A bar of `total` steps, `done` of them finished already, in the open display."""
    return Bar(title, total, done)
