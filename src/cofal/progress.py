"""Progress bars with time left, on stderr, shown only to a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """A Rich progress display; add bars with `.add_task(title, total=n)` and move them with `.advance(task)`."""
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
        yield bars
