"""`cofal reproduce auto`: its grid, its verdict on books with known answers, and heads trained in one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cofal.baselines.playing import fit_federated
from cofal.baselines.system import Federation
from cofal.reproduce.auto_grid import places
from cofal.reproduce.book import Book
from cofal.reproduce.cells import Cell
from cofal.reproduce.claims import verdict
from cofal.reproduce.grid import load_experiment
from cofal.reproduce.records import Record
from cofal.reproduce.scales import load_scale
from cofal.reproduce.views.auto import view

SCALE = load_scale("cpu")
CELLS = load_experiment("auto").cells("cpu", SCALE)
UNLIKE = ("dirichlet-0.1", "dirichlet-0.03")


def book(lead: Callable[[Cell], float], chance: Callable[[Cell], float] | None = None) -> Book:
    """Central wins by 5 points up to alpha 0.3 and loses by 5 beyond; auto is `lead` points above the better one."""
    records = []
    for cell in CELLS:
        central = 55.0 if cell.on.name not in UNLIKE else 50.0
        value = {"central": central, "client": 105 - central, "auto": 55 + lead(cell)}[cell.system.rpartition("-")[2]]
        result: dict = {"accuracy": [(value + 0.1 * (cell.seed % 5)) / 100] * len(cell.budgets)}
        if cell.system.endswith("-auto"):
            likely = (0.1 if cell.on.name in UNLIKE else 0.9) if chance is None else chance(cell)
            result["auto"] = {"central_wins": likely, "overlap": 0.5, "decision": "mixed"}
        records.append(Record(cell, result, 0.5, {}))
    return Book(load_experiment("auto"), SCALE, records)


def test_the_grid_is_the_one_that_was_promised() -> None:
    assert len(CELLS) == len(set(CELLS)) == 6 * 3 * 3 * 3 * (20 + 10 + 20)
    assert {cell.clients for cell in CELLS} == {2, 4, 10}
    assert all(cell.pooled for cell in CELLS)
    smoke = load_experiment("auto").cells("smoke", load_scale("smoke"))
    assert len(smoke) <= 60  # seconds, and a part of `make smoke`


def test_a_lead_everywhere_holds_and_one_place_two_percent_below_does_not() -> None:
    assert verdict("auto", book(lambda cell: 0.5)).word == "holds"

    def one_loss(cell: Cell) -> float:
        here = (cell.set, cell.on.name, cell.clients, cell.system) == ("digits", "iid", 4, "typiclust-auto")
        return -1.1 if here else 0.5

    found = verdict("auto", book(one_loss))
    assert found.word == "holds in part"
    (worst,) = [check for check in found.checks if not check.holds]
    assert worst.what.endswith("TypiClust on digits, pixels, IID, 4 clients")
    assert worst.value.mean == pytest.approx(-2, abs=0.01)


def test_wrong_advice_is_told() -> None:
    found = verdict("auto", book(lambda cell: 0.5, lambda cell: 0.9))
    (share,) = [check for check in found.checks if "foretold" in check.what]
    assert not share.holds
    assert share.value.mean == pytest.approx(4 / 6)


def test_the_page_shows_every_place_once() -> None:
    made = view(book(lambda cell: -0.2))
    assert len(made.csv_rows) == len(places(book(lambda cell: 0.0))) == 162
    assert len(made.tables) == 4
    assert "55.2 / 50.2 / 55.0; -0.4 ±0.0 †" in made.tables[1].markdown()


def test_a_head_trained_in_one_place_is_the_federated_one_up_to_rounding() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, 8)).astype(np.float32) for n in (9, 4, 7)]
    labels = [rng.integers(3, size=len(own)) for own in rows]
    apart = Federation(rows, labels, rng.normal(size=(50, 8)).astype(np.float32), rng.integers(3, size=50), 3)
    picked = [list(range(n)) for n in (6, 4, 2)]
    federated, pooled = (fit_federated(each, picked, 5).test for each in (apart, replace(apart, pooled=True)))
    assert np.abs(federated - pooled).max() < 1e-3
    assert not math.isclose(float(np.abs(federated - 1 / 3).max()), 0, abs_tol=0.05)  # it has learnt something
