"""Records: whole or refused, found by what they depend on, never another cell's."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cofal.errors import UserError
from cofal.reproduce.cells import Cell
from cofal.reproduce.records import Record, Records

CELL = Cell("digits", "dirichlet", 0.1, 4, "mine:Mine-central", 0, (12, 40))
IDENTITY = {"shared": "d1"}


@pytest.fixture
def records(tmp_path: Path) -> Records:
    kept = Records(tmp_path)
    kept.write(Record(CELL, {"accuracy": [0.5, 0.6]}, 1.234, {"numpy": "2"}), IDENTITY)
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
        (lambda text: text.replace('"seed": 0', '"seed": 1'), "is the record of another cell"),
        (lambda text: text.replace('"d1"', '"d2"'), "is the record of another cell"),
        (lambda text: json.dumps({**json.loads(text), "result": {"accuracy": [0.5]}}), "1 accuracies for 2 budgets"),
    ],
)
def test_a_damaged_or_foreign_record_is_told_in_one_line_with_the_remedy(records: Records, spoil, told: str) -> None:
    path = records.path(CELL, IDENTITY)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(UserError) as refused:
        records.read(CELL, IDENTITY)
    message = str(refused.value)
    assert told in message
    assert str(path) in message
    assert "remove it and run the command again" in message
    assert "\n" not in message


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(records: Records) -> None:
    dead, alive = (records.folder / f".x.json.{process}-aa.tmp" for process in (2**22 + 1, os.getpid()))
    for leftover in (dead, alive):
        leftover.write_text("half")
    records.clean()
    assert not dead.exists()
    assert alive.exists()
