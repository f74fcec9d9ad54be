"""What ships: every name loads at every scale, cells differ by all they depend on, the paper's numbers are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cofal.errors import UserError
from cofal.reproduce.cells import Cell, cell_of
from cofal.reproduce.claims import CLAIMS
from cofal.reproduce.grid import experiment_names, load_experiment
from cofal.reproduce.naming import coordination_of, method_of, system_title
from cofal.reproduce.paper import reported, reported_gap
from cofal.reproduce.scales import SCALES, load_scale

CELL = Cell("digits", "iid", None, 4, "maxherding-central", 0, (12, 40), params={"probcover": {"delta": 0.5}})


def test_fourteen_names_each_with_a_claim_at_every_scale() -> None:
    assert len(experiment_names()) == 14
    decided = set()
    for name in experiment_names():
        experiment = load_experiment(name)
        assert experiment.claims
        assert set(experiment.claims) <= set(CLAIMS)
        decided |= {claim for claim in experiment.claims if CLAIMS[claim].page == name}
        for scale_name in SCALES:
            cells = experiment.cells(scale_name, load_scale(scale_name))
            assert cells, (name, scale_name)
            assert len(set(cells)) == len(cells)
    assert decided == set(CLAIMS)  # no claim is without a page that decides it


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'fig-alpha'"):
        load_experiment("fig-alfa")


@pytest.mark.parametrize(
    "other",
    [
        replace(CELL, set="x"),
        replace(CELL, split="dirichlet", alpha=0.1),
        replace(CELL, clients=2),
        replace(CELL, system="maxherding-per-client"),
        replace(CELL, seed=1),
        replace(CELL, budgets=(12, 41)),
        replace(CELL, encoder="iid"),
        replace(CELL, params={"probcover": {"delta": 0.6}}),
        replace(CELL, code="abc"),
    ],
)
def test_a_key_depends_on_every_part_of_a_cell_and_on_its_data(other: Cell) -> None:
    identity = {"shared": "d1"}
    assert other.key(identity) != CELL.key(identity)
    assert CELL.key({"shared": "d2"}) != CELL.key(identity)
    assert cell_of(CELL.plain()) == CELL
    assert cell_of(CELL.plain()).key(identity) == CELL.key(identity)


def test_a_selector_of_the_user_takes_part_where_it_can() -> None:
    experiment, scale = load_experiment("table-full-pipeline"), load_scale("smoke")
    systems = {cell.system for cell in experiment.cells("smoke", scale, {"mine:Mine": "abc"})}
    assert "mine:Mine-central" in systems
    assert "ono-mine:Mine" not in systems
    assert {cell.code for cell in experiment.cells("smoke", scale, {"mine:Mine": "abc"})} == {"", "abc"}


def test_names_for_people() -> None:
    assert system_title("probcover-per-client") == "ProbCover, per-client"
    assert system_title("ono-typiclust") == "TypiClust, own encoders"
    assert system_title("maxherding-perturbed-0.3") == "MaxHerding, noise 0.3"
    assert system_title("f-al-entropy") == "F-AL (entropy)"
    assert system_title("mine:Mine-central") == "Mine, central"
    assert (method_of("mine:Mine-central"), coordination_of("mine:Mine-central")) == ("mine:Mine", "central")
    assert (method_of("kafal"), coordination_of("kafal")) == ("kafal", "")


def test_the_papers_numbers() -> None:
    found = reported("full_pipeline", "cifar10", "iid", "probcover-central", 50)
    assert found is not None
    assert (found.mean, found.error) == (78.7, 0.5)
    own = reported("full_pipeline", "imagenet100", "dirichlet-0.1", "ono-maxherding", 1000)
    assert own is not None
    assert own.mean == 56.1
    noised = reported("perturbation_cifar100_iid", "imagenet100", "iid", "probcover-perturbed-0.6", 100)
    assert noised is not None
    assert noised.mean == 23.0
    assert reported("full_pipeline", "cifar10", "iid", "probcover-central", 51) is None
    # (100: 41.3, 500: 48.6, 1000: 51.2) against (27.3, 45.2, 49.8) by the trapezoid rule
    central, alone = 400 * 44.95 + 500 * 49.9, 400 * 36.25 + 500 * 47.5
    gap = reported_gap("same_embedding_iid", "cifar100", "iid", "probcover-central", "probcover-per-client")
    assert gap == pytest.approx(100 * (central - alone) / central)
    unlike = reported_gap(
        "same_embedding_dirichlet_cifar100", "cifar100", "dirichlet-0.1", "probcover-central", "probcover-per-client"
    )
    assert unlike is not None
    assert unlike < 0
