"""Files are written whole or not at all, and where that cannot be, it is told in one line.

Logs: whatever happens to a writer, whole lines stay, and what is left of another one is no line.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cofal.errors import EnvironmentFault, UserError
from cofal.files import append_line, check_writable, new_folder, read_lines, write_text

LONG = "x" * 20000  # longer than the block in which the end of the last line is looked for


@pytest.mark.parametrize("place", [".", "/", "..", "folder"])
def test_a_folder_is_no_place_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for attempt in (lambda: write_text(place, "x"), lambda: check_writable(Path(place))):
        with pytest.raises(UserError, match="it is a folder; name a file in it"):
            attempt()
    assert [file.name for file in tmp_path.rglob("*")] == ["folder"]


def test_a_new_folder_that_fails_is_gone_and_an_empty_one_stays_empty(tmp_path: Path) -> None:
    def fail_in(folder: Path) -> None:
        with new_folder(folder, "a thing"):
            write_text(folder / "inner" / "part.txt", "x")
            raise KeyboardInterrupt

    (tmp_path / "given").mkdir()
    for folder in (tmp_path / "outer" / "new", tmp_path / "given"):
        with pytest.raises(KeyboardInterrupt):
            fail_in(folder)
    assert [file.name for file in tmp_path.rglob("*")] == ["given"]


@pytest.mark.parametrize("torn", ["", "y", LONG])
@pytest.mark.parametrize("before", ["", "first\n", f"first\n{LONG}\n"])
def test_a_torn_line_is_not_read_and_goes_before_the_next_one(tmp_path: Path, before: str, torn: str) -> None:
    path = tmp_path / "folder" / "log.jsonl"
    path.parent.mkdir()
    path.write_text(before + torn)
    assert read_lines(path) == before.encode()
    append_line(path, "next")
    assert path.read_text() == f"{before}next\n"


def test_only_what_was_added_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_line(path, "first")
    append_line(path, "second")
    assert read_lines(path, len("first\n")) == b"second\n"
    assert read_lines(path, path.stat().st_size) == b""


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_line(path, "first")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))  # room for a part of the line
    try:
        with pytest.raises(EnvironmentFault, match="free some space"):
            append_line(path, LONG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "first\n"


FOR_EVER = """
import sys
from cofal.files import append_line
number = 0
while True:
    number += 1
    append_line(sys.argv[1], f"{sys.argv[2]} {number} " + "x" * 20000)
    print(number, flush=True)
"""


def test_processes_append_at_once_and_a_killed_one_loses_nothing_it_had_finished(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    writers = {
        name: subprocess.Popen([sys.executable, "-c", FOR_EVER, str(path), name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "other")
    }
    finished = {}
    for name, writer in writers.items():
        for _ in range(50):
            finished[name] = int(writer.stdout.readline())
    for name, writer in writers.items():  # the first is killed while the second goes on
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate()[0].split()
        finished[name] = int(rest[-1]) if rest else finished[name]
    append_line(path, "end 1 " + LONG)
    lines = path.read_text().splitlines()
    assert all(line.endswith(" " + LONG) for line in lines)
    for name, count in finished.items():
        numbers = [int(line.split()[1]) for line in lines if line.startswith(f"{name} ")]
        assert numbers == list(range(1, len(numbers) + 1))
        assert count <= len(numbers) <= count + 1  # at most one that was there and not told any more
