"""The ledger: whatever is changed, removed or moved is found; a line is whole or its message was never sent."""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.errors import EnvironmentFault, UserError
from cofal.privacy import ledger as ledger_module
from cofal.privacy.ledger import HEAD, START, Ledger, Reading, read_ledger

FIELD = {"name": "weight", "dtype": "float32", "shape": [2, 3], "bytes": 24}


def fill(path: Path, count: int) -> Ledger:
    ledger = Ledger(path, sync=False)
    for number in range(count):
        ledger.append(phase="train head", kind="model", fields=[FIELD], parameters={"server-round": number})
    return ledger


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Six lines, as bytes with their ends."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    fill(path, 6)
    return path.read_bytes().splitlines(keepends=True)


def test_what_was_appended_is_read_back_in_a_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    assert fill(path, 3)._head == read_ledger(path).head
    Ledger(path).append(phase="query.embed", kind="raw", refused="no")  # another process: it finds the head by itself
    reading = read_ledger(path)
    assert reading.broken == ""
    assert [entry["number"] for entry in reading.entries] == [1, 2, 3, 4]
    first, last = reading.entries[0], reading.entries[-1]
    assert (first["fields"], first["bytes"], first["parameters"]) == ([FIELD], 24, {"server-round": 0})
    assert "refused" not in first
    assert (last["kind"], last["refused"], last["bytes"], last["fields"]) == ("raw", "no", 0, [])
    assert first["prev"] == START
    assert first["time"].endswith("+00:00")
    assert path.stat().st_mode & 0o077 == 0


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_changed_removed_moved_or_added_line_is_found(written, tmp_path_factory, data):
    lines = list(written)
    where = data.draw(st.integers(0, len(lines) - 1), label="line")
    match data.draw(st.sampled_from(["byte", "cut", "remove", "swap", "repeat", "value"])):
        case "byte":
            at = data.draw(st.integers(0, len(lines[where]) - 1))
            new = data.draw(st.integers(0, 255).filter(lambda value: value != lines[where][at]))
            lines[where] = lines[where][:at] + bytes([new]) + lines[where][at + 1 :]
        case "cut":
            lines[where] = lines[where][: data.draw(st.integers(1, len(lines[where]) - 1))]
        case "remove":
            where = data.draw(st.integers(0, len(lines) - 2))  # the last line: see the next test
            del lines[where]
        case "swap":
            other = data.draw(st.integers(0, len(lines) - 1).filter(lambda value: value != where))
            lines[where], lines[other] = lines[other], lines[where]
            where = min(where, other)
        case "repeat":
            lines.insert(where, lines[where])
            where += 1
        case "value":  # changed, and its own hash made to fit: then the next line, or the noted head, tells
            changed = json.loads(lines[where])
            changed["bytes"] += 1
            path = tmp_path_factory.mktemp("forged") / "one.jsonl"
            forger = Ledger(path, sync=False)
            forger._number, forger._head, forger._seen = changed["number"] - 1, changed["prev"], 0
            forger.append(phase="train head", kind="model", fields=[{**FIELD, "bytes": 25}])
            lines[where] = path.read_bytes()
            where += 1
    path = tmp_path_factory.mktemp("tampered") / "ledger.jsonl"
    path.write_bytes(b"".join(lines))
    head = json.loads(written[-1])["hash"]
    reading = read_ledger(path, head)
    assert reading.broken.startswith(f"line {where + 1}:"), reading.broken
    assert len(reading.entries) == where


@given(kept=st.integers(0, 5))
@settings(max_examples=6, deadline=None)
def test_lines_taken_from_the_end_are_found_by_a_noted_head(written, tmp_path_factory, kept):
    path = tmp_path_factory.mktemp("short") / "ledger.jsonl"
    path.write_bytes(b"".join(written[:kept]))
    assert read_ledger(path).broken == ""  # the lines alone cannot tell
    assert f"line {kept + 1}: missing" in read_ledger(path, json.loads(written[-1])["hash"]).broken
    assert read_ledger(path, json.loads(written[kept - 1])["hash"] if kept else START).broken == ""


@given(cuts=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_a_line_cut_short_is_noted_even_if_noting_is_cut_short(written, tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("torn") / "ledger.jsonl"
    path.write_bytes(b"".join(written[:3]))
    for cut in cuts:  # each time a process dies while it writes the line, or the note about the one before
        begin = path.read_bytes().rfind(b"\n") + 1
        kept = path.with_name(HEAD).read_bytes() if path.with_name(HEAD).exists() else b""
        fill(path, 1)
        after = path.read_bytes()
        path.write_bytes(after[: begin + max(1, int(cut * (len(after) - begin - 1)))])
        path.with_name(HEAD).write_bytes(kept)
    torn = path.read_bytes().rpartition(b"\n")[2]
    if torn:
        assert "cut short" in read_ledger(path).broken
    fill(path, 1)
    reading = read_ledger(path)
    assert reading.broken == ""
    if torn:
        note = reading.entries[-2]
        assert "never sent, or the line was cut later" in note["refused"]
        assert note["parameters"]["torn"] == torn.decode()
    assert [json.dumps(entry, separators=(",", ":")).encode() + b"\n" for entry in reading.entries[:3]] == written[:3]


# --- the end


@pytest.mark.parametrize("kept", [0, 1, 5, "gone"])
def test_lines_taken_from_the_end_are_found_by_the_second_file(tmp_path, kept):
    path = tmp_path / "ledger.jsonl"
    fill(path, 6)
    lines = path.read_bytes().splitlines(keepends=True)
    if kept == "gone":
        path.unlink()
        kept = 0
    else:
        path.write_bytes(b"".join(lines[:kept]))
    reading = read_ledger(path)
    assert reading.broken == f"line {kept + 1}: missing at the end, since ledger.head says that line 6 was written"
    assert len(reading.entries) == kept
    # The site sends on: what is missing stays on record, although number 6 comes to be taken again.
    for _ in range(3):
        fill(path, 2)
        reading = read_ledger(path)
        assert reading.broken.startswith(f"line {kept + 1}: it notes that lines before it are missing: line 6 had been")
    assert len(reading.entries) == kept + 7
    assert reading.entries[kept]["parameters"]["missing"] == {"number": 6, "hash": json.loads(lines[-1])["hash"]}
    assert sum("refused" in entry for entry in reading.entries) == 1


def test_a_line_that_was_sent_and_then_cut_is_not_taken_for_a_crash(tmp_path):
    path = tmp_path / "ledger.jsonl"
    fill(path, 3)
    path.write_bytes(path.read_bytes()[:-20])
    assert read_ledger(path).broken.startswith("line 3: it was cut short")
    fill(path, 1)
    assert "line 3 had been written" in read_ledger(path).broken


@pytest.mark.parametrize("kept", [0, 2, 4])
@pytest.mark.parametrize("forged", [1, 2, 3, 9])
def test_lines_replaced_at_the_end_stay_on_record(tmp_path, kept, forged):
    """By fewer lines than there were, as many, or more: the site's next message does not make them good."""
    path = tmp_path / "ledger.jsonl"
    fill(path, 5)
    written = path.read_bytes().splitlines(keepends=True)
    second = path.with_name(HEAD).read_bytes()
    path.write_bytes(b"".join(written[:kept]))
    path.with_name(HEAD).unlink()
    forger = Ledger(path, sync=False)
    forger._number, forger._seen = kept, path.stat().st_size
    forger._head = json.loads(written[kept - 1])["hash"] if kept else START
    for _ in range(forged):
        forger.append(phase="forged", kind="nothing")
    path.with_name(HEAD).write_bytes(second)
    assert read_ledger(path).broken
    for _ in range(3):
        fill(path, 2)
        broken = read_ledger(path).broken
        assert broken.startswith(
            f"line {kept + forged + 1}: it notes that lines before it are missing: line 5 had been"
        )
        assert broken.endswith("another stands in its place" if kept + forged >= 5 else f"end with {kept + forged}")
    assert sum("refused" in entry for entry in read_ledger(path).entries) == 1


def test_a_chain_made_anew_does_not_fit_the_second_file(tmp_path):
    path, other = tmp_path / "ledger.jsonl", tmp_path / "other" / "ledger.jsonl"
    other.parent.mkdir()
    fill(path, 4)
    Ledger(other).append(phase="query.describe", kind="description")
    fill(other, 6)
    shutil.copy(other, path)
    assert read_ledger(path).broken.startswith("line 4: not the one that ledger.head names")
    fill(path, 1)
    assert "line 4 had been written, and another stands in its place" in read_ledger(path).broken


@pytest.mark.parametrize("content", [None, b"", b"0" * 40, b"rubbish\n" * 40])
def test_a_ledger_without_a_second_file_is_in_doubt_unless_a_noted_head_tells_its_end(tmp_path, content):
    """Written by an earlier version, after a power cut, or lines were taken; the next line makes the file good."""
    path = tmp_path / "ledger.jsonl"
    fill(path, 3)
    path.with_name(HEAD).unlink()
    if content is not None:
        path.with_name(HEAD).write_bytes(content)
    why = "absent or damaged, so that nothing tells whether lines are missing after line 3"
    assert read_ledger(path) == Reading(read_ledger(path).entries, "", f"ledger.head is {why}")
    heads = [entry["hash"] for entry in read_ledger(path).entries]
    for count in (0, 1, 2):  # on record from now on, and only once
        assert [bool(read_ledger(path, head).doubt) for head in heads] == [True, True, False]
        if count == 0:
            continue
        fill(path, 1)
        reading = read_ledger(path)
        assert (reading.broken, reading.doubt) == ("", f"line 4 notes that ledger.head was {why}")
        assert len(reading.entries) == 4 + count
    path.write_bytes(b"")
    assert "missing at the end" in read_ledger(path).broken


@pytest.mark.parametrize("content", [None, b"rubbish\n"])
def test_an_emptied_ledger_without_a_second_file_is_in_doubt_from_then_on(tmp_path, content):
    path = tmp_path / "ledger.jsonl"
    fill(path, 3)
    path.write_bytes(b"")
    path.with_name(HEAD).unlink()
    if content is not None:
        path.with_name(HEAD).write_bytes(content)
    assert read_ledger(path).doubt.endswith("whether lines are missing after line 0")
    fill(path, 1)
    reading = read_ledger(path)
    assert (reading.broken, len(reading.entries)) == ("", 2)
    assert reading.doubt.startswith("line 1 notes that ledger.head was absent or damaged")


def test_the_second_file_is_its_owner_s_alone(tmp_path):
    fill(tmp_path / "ledger.jsonl", 1)
    assert (tmp_path / HEAD).stat().st_mode & 0o077 == 0


def _die_between(path: str, before: int = 1) -> None:
    """Be killed before the second file names line `before` or a later one."""
    real = ledger_module.overwrite

    def dying(target, record):
        if int(record[:20]) >= before:
            os.kill(os.getpid(), signal.SIGKILL)
        real(target, record)

    ledger_module.overwrite = dying
    fill(Path(path), 1)


@pytest.mark.parametrize("before", [0, 3])
def test_a_kill_between_the_two_writes_does_not_look_like_tampering(tmp_path, before):
    path = tmp_path / "ledger.jsonl"
    fill(path, before)
    for lag in (1, 2):  # the second file lags by more each time
        child = multiprocessing.get_context("fork").Process(target=_die_between, args=(str(path),))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        reading = read_ledger(path)
        assert (reading.broken, reading.doubt, len(reading.entries)) == ("", "", before + lag)
    fill(path, 1)
    reading = read_ledger(path)
    assert (reading.broken, reading.doubt, len(reading.entries)) == ("", "", before + 3)
    assert not any("refused" in entry for entry in reading.entries)


def test_a_ledger_of_which_both_files_are_moved_away_begins_anew(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = fill(path, 3)
    for writer in (ledger, Ledger(path, sync=False)):  # at work meanwhile, or started since
        path.unlink()
        path.with_name(HEAD).unlink()
        writer.append(phase="query.describe", kind="description")
        reading = read_ledger(path)
        assert (reading.broken, reading.doubt, len(reading.entries)) == ("", "", 1)


def test_a_kill_before_the_first_line_does_not_look_like_tampering(tmp_path):
    path = tmp_path / "ledger.jsonl"
    child = multiprocessing.get_context("fork").Process(target=_die_between, args=(str(path), 0))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert not path.exists()  # never a ledger without its second file
    fill(path, 1)
    reading = read_ledger(path)
    assert (reading.broken, reading.doubt, len(reading.entries)) == ("", "", 1)


def test_the_second_file_is_written_last_and_once_a_line(tmp_path, monkeypatch):
    path, seen = tmp_path / "ledger.jsonl", []
    real = ledger_module.overwrite

    def watched(target, record):
        lines = path.read_bytes().splitlines() if path.exists() else []
        last = json.loads(lines[-1]) if lines else {"number": 0, "hash": START}  # in the ledger already
        assert record == b"%020d %s\n" % (last["number"], last["hash"].encode())
        seen.append(last["number"])
        real(target, record)

    monkeypatch.setattr(ledger_module, "overwrite", watched)
    fill(path, 4)
    assert seen == [0, 1, 2, 3, 4]


def test_what_the_second_file_cannot_hold_is_not_in_the_ledger_either(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.with_name(HEAD).mkdir()
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        fill(path, 1)
    assert not path.exists()
    with pytest.raises(UserError, match=r"cannot read .*ledger\.head"):
        read_ledger(path)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = fill(path, 2)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))  # room for a part of the line
    try:
        with pytest.raises(EnvironmentFault, match="cannot be written"):
            ledger.append(phase="train", kind="model", fields=[FIELD])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    ledger.append(phase="train", kind="model", fields=[FIELD])
    assert len(read_ledger(path).entries) == 3
    assert read_ledger(path).broken == ""


def test_nothing_is_added_to_a_damaged_ledger(tmp_path, written):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(written).replace(b'"server-round":5', b'"server-round":6'))
    with pytest.raises(EnvironmentFault, match="damaged"):
        fill(path, 1)


def test_a_missing_ledger_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_ledger(tmp_path / "ledger.jsonl")


def _fill_in_child(path: str) -> None:
    fill(Path(path), 60)


def test_processes_take_turns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    spawn = multiprocessing.get_context("fork")
    children = [spawn.Process(target=_fill_in_child, args=(str(path),)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    reading = read_ledger(path)
    assert reading.broken == ""
    assert len(reading.entries) == 240


def test_a_reader_is_not_misled_by_lines_that_are_written_meanwhile(tmp_path):
    path = tmp_path / "ledger.jsonl"
    fill(path, 1)
    child = multiprocessing.get_context("fork").Process(target=_fill_in_child, args=(str(path),))
    child.start()
    while child.is_alive():
        reading = read_ledger(path)
        assert "missing" not in reading.broken
        assert reading.doubt == ""
    child.join(60)
    assert len(read_ledger(path).entries) == 61


FOR_EVER = """
import sys
from pathlib import Path
from cofal.privacy.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), sync=False)
number = int(sys.argv[2])
while True:
    number += 1
    ledger.append(phase="train", kind="model", parameters={"own": number, "long": "x" * 20000})
    print(number, flush=True)  # "sent"
"""


def test_what_was_sent_before_a_kill_is_in_the_ledger(tmp_path):
    path = tmp_path / "ledger.jsonl"
    sent = 0
    for wait in (1, 30, 61, 100):
        child = subprocess.Popen(
            [sys.executable, "-c", FOR_EVER, str(path), str(sent)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(wait):
            sent = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.communicate()[0].split()
        sent = int(rest[-1]) if rest else sent
        reading = read_ledger(path)
        assert reading.broken == "" or "by a crash while it was written" in reading.broken
        noted = [entry["parameters"]["own"] for entry in reading.entries if "own" in entry["parameters"]]
        assert noted[:sent] == list(range(1, sent + 1))
        assert len(noted) <= sent + 1  # at most one line whose message did not go out any more
        sent = len(noted)
    fill(path, 1)
    assert read_ledger(path).broken == ""
