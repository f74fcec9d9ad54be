"""Records: whole or refused by their line, found by what they depend on, never another cell's; the last one counts."""

from __future__ import annotations

import json
import multiprocessing
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cofal.errors import UserError
from cofal.files import read_lines
from cofal.reproduce.cells import Cell
from cofal.reproduce.records import Record, Records

CELL = Cell("digits", "dirichlet", 0.1, 4, "mine:Mine-central", 0, (12, 40))
IDENTITY = {"shared": "d1"}


def keep(records: Records, cell: Cell, accuracy: tuple[float, float] = (0.5, 0.6)) -> None:
    records.write(Record(cell, {"accuracy": list(accuracy)}, 1.234, {"numpy": "2"}), IDENTITY)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    kept = Records(tmp_path)
    keep(kept, CELL)
    return kept


def test_a_record_comes_back_as_it_was(records: Records) -> None:
    found = records.read(CELL, IDENTITY)
    assert (found.cell, found.accuracy, found.seconds) == (CELL, [0.5, 0.6], 1.23)
    assert records.has(CELL, IDENTITY)
    assert not records.has(replace(CELL, seed=1), IDENTITY)
    assert not records.has(CELL, {"shared": "d2"})


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: "{}", "is not a whole record"),
        (lambda text: "<<<<<<< HEAD", "is not a whole record"),
        (lambda text: "", "is not a whole record"),
        (lambda text: text.replace('"result"', '"results"'), "is not a whole record"),
        (lambda text: text.replace('"seed":0', '"seed":1'), "is the record of another cell"),
        (lambda text: text.replace('"d1"', '"d2"'), "is the record of another cell"),
        (lambda text: text.replace("[0.5,0.6]", "[0.5]"), "1 accuracies for 2 budgets"),
    ],
)
def test_a_damaged_or_foreign_record_is_told_in_one_line_with_the_remedy(records: Records, spoil, told: str) -> None:
    path = records.path(CELL)
    good = path.read_text().removesuffix("\n")
    path.unlink()
    for seed in (1, 2):
        keep(records, replace(CELL, seed=seed))
    spoilt = spoil(good)
    assert spoilt != good
    path.write_text(f"{path.read_text()}{spoilt}\n")
    keep(records, replace(CELL, seed=3))
    with pytest.raises(UserError) as refused:
        records.read(CELL, IDENTITY)
    message = str(refused.value)
    assert told in message
    assert f"line 3 of {path}" in message
    assert "remove that line and run the command again" in message
    assert "\n" not in message

    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))  # the remedy
    assert not records.has(CELL, IDENTITY)
    assert all(records.read(replace(CELL, seed=seed), IDENTITY).cell.seed == seed for seed in (1, 2, 3))


def test_a_record_is_one_compact_line_in_the_file_of_its_set(records: Records) -> None:
    keep(records, replace(CELL, set="other"))
    assert sorted(file.name for file in records.folder.iterdir()) == ["digits.jsonl", "other.jsonl"]
    (line,) = records.path(CELL).read_text().splitlines()
    content = json.loads(line)
    assert list(content) == ["key", "cell", "identity", "result", "seconds", "versions"]
    assert content["key"] == CELL.key(IDENTITY)
    assert line == json.dumps(content, separators=(",", ":"))


def test_of_several_records_of_a_cell_the_last_one_counts(records: Records) -> None:
    assert records.read(CELL, IDENTITY).accuracy == [0.5, 0.6]
    keep(records, CELL, (0.7, 0.8))
    assert records.read(CELL, IDENTITY).accuracy == [0.7, 0.8]
    assert Records(records.folder).read(CELL, IDENTITY).accuracy == [0.7, 0.8]


def test_a_cell_without_a_record_is_told(records: Records) -> None:
    with pytest.raises(UserError, match=r"digits\.jsonl has no record of digits.*seed 5; run the command again"):
        records.read(replace(CELL, seed=5), IDENTITY)


def test_a_torn_last_line_is_no_record_and_goes_when_the_next_is_written(records: Records) -> None:
    path, second, third = records.path(CELL), replace(CELL, seed=1), replace(CELL, seed=2)
    keep(records, second)
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for end in range(first_line, len(whole)):
        path.write_bytes(whole[:end])
        after = Records(records.folder)
        assert after.has(CELL, IDENTITY)
        assert not after.has(second, IDENTITY)
    keep(records, third)
    assert path.read_bytes().startswith(whole[:first_line])
    for reader in (after, Records(records.folder)):  # one that saw the torn line, and one that did not
        assert not reader.has(second, IDENTITY)
        assert reader.read(third, IDENTITY).cell == third
    assert path.read_bytes().count(b"\n") == 2


def test_what_others_append_is_found_and_nothing_is_read_twice(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cofal.reproduce import records as module

    read: list[int] = []

    def counted(path: Path, start: int) -> bytes:
        found = read_lines(path, start)
        read.append(len(found))
        return found

    monkeypatch.setattr(module, "read_lines", counted)
    path, added = records.path(CELL), replace(CELL, seed=1)
    for _ in range(3):
        assert records.has(CELL, IDENTITY)
        assert not records.has(added, IDENTITY)
    keep(Records(records.folder), added)
    for _ in range(3):
        assert records.has(CELL, IDENTITY)
        assert records.has(added, IDENTITY)
    assert len(read) == 2
    assert sum(read) == path.stat().st_size
    path.unlink()
    assert not records.has(CELL, IDENTITY)


def _keep_for_ever(folder: Path, clients: int) -> None:
    seed = 0
    while True:
        keep(Records(folder), replace(CELL, clients=clients, seed=seed))
        seed += 1


def test_two_processes_append_at_once_and_are_killed_in_the_middle(tmp_path: Path) -> None:
    """A reader that lives all the while finds every record; no kill leaves a damaged one behind."""
    context = multiprocessing.get_context("fork")
    records = Records(tmp_path)
    for _ in range(3):  # each time they go on behind what the killed ones left
        before = _seeds(records)
        writers = [context.Process(target=_keep_for_ever, args=(tmp_path, clients)) for clients in (2, 3)]
        for writer in writers:
            writer.start()
        for clients, writer in zip((2, 3), writers):
            while not records.has(replace(CELL, clients=clients, seed=before[clients] + 20), IDENTITY):
                assert writer.is_alive()
        for writer in writers:
            writer.kill()
            writer.join(60)
            assert writer.exitcode == -signal.SIGKILL
    keep(records, CELL)
    assert records.path(CELL).read_bytes().endswith(b"\n")
    assert _seeds(records) == _seeds(Records(tmp_path))


def _seeds(records: Records) -> dict[int, int]:
    """By number of clients: how many seeds there are, from 0 on without a gap, each of them a good record."""
    found = {}
    for clients in (2, 3):
        seed = 0
        while records.has(cell := replace(CELL, clients=clients, seed=seed), IDENTITY):
            assert records.read(cell, IDENTITY).cell == cell
            seed += 1
        found[clients] = seed
    return found
