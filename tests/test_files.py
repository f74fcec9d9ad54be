"""Files are written whole or not at all, and where that cannot be, it is told in one line.

Logs: whatever happens to a writer, whole lines stay, and what is left of another one is no line.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
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


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old.txt").write_text("old")
    links = {"direct": tmp_path / "there" / "old.txt", "twice": Path("direct"), "new": Path("there/folder/new.txt")}
    for name, leads in links.items():
        (tmp_path / name).symlink_to(leads)
        check_writable(tmp_path / name)
        write_text(tmp_path / name, name)
        assert (tmp_path / name).readlink() == leads
        assert (tmp_path / name).read_text() == name
    assert (tmp_path / "there" / "old.txt").read_text() == "twice"
    assert (tmp_path / "there" / "folder" / "new.txt").read_text() == "new"


def test_what_is_no_regular_file_is_left_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "printed").write_text("")
    with open(tmp_path / "printed", "w") as printed:
        (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{printed.fileno()}")  # as /dev/stdout is one
        for name in ("pipe", "link", "round", "stdout"):
            for attempt in (check_writable, lambda path: write_text(path, "x")):
                with pytest.raises(UserError, match=f"cannot write {tmp_path / name}: ") as raised:
                    attempt(tmp_path / name)
                assert "\n" not in str(raised.value)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert all((tmp_path / name).is_symlink() for name in ("link", "round", "stdout"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "pipe", "printed", "round", "stdout"]


def test_a_new_folder_takes_the_place_of_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match="it exists and is no folder"), new_folder(tmp_path / name, "a thing"):
            pass
        with pytest.raises(UserError, match="is not a folder"):
            check_writable(tmp_path / name / "file")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "pipe"]


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
