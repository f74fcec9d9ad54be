"""Bounds of questions: no coordinator of ours goes beyond them, and one that lies is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregate_choice import choose_with, parts_of
from cofal.errors import UserError
from cofal.federation.questions import OWN, common_question
from cofal.selection.aggregate import batches
from cofal.selection.aggregate.bounds import check_question
from cofal.selection.aggregate.exchange import OFTEN, Consortium, Holder, run
from cofal.selection.aggregate.regions import Rows
from cofal.selection.aggregate.select import METHODS, aggregate_method
from cofal.selection.auto_aggregate import halves
from cofal.selection.worth import number_of_worth_cells


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([*METHODS, "paper"]),
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=4).filter(any),
    spread=st.sampled_from([0.0, 0.3, 2.0]),  # 0: nothing but copies
    share=st.sampled_from([0.2, 1.0]),
    least=st.sampled_from([1, 5]),
    masked=st.booleans(),
)
def test_coordinators_keep_the_bounds(name, seed, sizes, spread, share, least, masked):
    parts = parts_of(seed, sizes, d=6, groups=3, spread=spread)
    method = aggregate_method("probcover" if name == "paper" else name)
    params = {"schedule": "paper"} if name == "paper" else {}
    kinds = set()

    def answer(holder, kind, arrays, numbers):
        kinds.add(kind)
        check_question(arrays, numbers, 6, method.most)
        return method.answer(holder, kind, arrays, numbers)

    budgets = [int(share * size) for size in sizes]
    labeled = [np.arange((size - budget) // 3) for size, budget in zip(sizes, budgets)]
    choose_with(method, parts, budgets, labeled, answer=answer, masked=masked, min_region=least, **params)
    assert ("settle" in kinds) == (sum(budgets) > 0)


def test_the_measurement_of_auto_keeps_the_bounds():
    parts, method, kinds = parts_of(1, (200, 300), d=6), halves("likeness"), set()

    def answer(holder, kind, arrays, numbers):
        kinds.add(kind)
        check_question(arrays, numbers, 6, method.most)
        return method.answer(holder, kind, arrays, numbers)

    consortium = Consortium([200, 300], [0, 0], [5, 5], 6)
    holders = [Holder(rows, np.zeros(len(rows), bool)) for rows in parts]
    run(method.coordinate(consortium, np.random.default_rng(0)), holders, answer)
    assert kinds == {"cells", "sums", "likeness"}


def test_large_selections_keep_the_bounds(monkeypatch):
    """With the bounds of thousands made small: the coordinator cuts what it asks for, and every budget is met."""
    monkeypatch.setattr(batches, "MOST_BALLS", 48)
    parts, most = parts_of(3, (400, 400), d=16, groups=300, spread=0.05), []

    def answer(holder, kind, arrays, numbers):
        if "balls" in arrays:
            most.append(len(arrays["balls"]))
        return aggregate_method("probcover").answer(holder, kind, arrays, numbers)

    choose_with(aggregate_method("probcover"), parts, (100, 100), answer=answer, delta=0.3, min_region=1)
    assert 40 < max(most) <= 48
    assert number_of_worth_cells(10**6, 10**6) == halves("likeness").most["centers"]


DIRECTION = np.eye(6, dtype=np.float32)[:1]


@pytest.mark.parametrize(
    ("name", "arrays", "numbers", "said"),
    [
        ("maxherding", {"candidates": 1.5 * DIRECTION}, {}, "candidates 1.5 long"),
        ("maxherding", {"candidates": DIRECTION * np.nan}, {}, "candidates that are no numbers"),
        ("maxherding", {"candidates": np.eye(7)}, {}, "candidates of 7 dimensions where its rows have 6"),
        ("maxherding", {"candidates": np.repeat(DIRECTION, 5000, axis=0)}, {}, "5000 candidates where 4096"),
        ("maxherding", {"offered": np.array([2.0])}, {}, "offered of 2"),
        ("maxherding", {"cosines": np.array([np.inf])}, {}, "cosines that are no numbers"),
        ("maxherding", {}, {"sharpness": 0.0}, "sharpness = 0"),
        ("maxherding", {}, {"bits": 60}, "bits = 60"),
        ("typiclust", {"centers": np.concatenate([DIRECTION, 1e6 * DIRECTION])}, {}, r"centers 1e\+06 long"),
        ("typiclust", {"means": (3 * DIRECTION).astype(np.float16)}, {}, "means 3 long"),
        ("typiclust", {"centers": np.zeros((501, 6))}, {}, "501 centers where 500 are the most"),
        ("typiclust", {"centers": np.zeros((2000, 3, 6))}, {}, "centers of 2000 iterations"),
        ("probcover", {"balls": np.zeros((10_000, 6))}, {}, "10000 balls where 8192"),
        ("probcover", {"prefix": np.zeros((100, 2), np.int32)}, {}, "100 prefix where 64"),
        ("probcover", {}, {"assigned": -1000}, "assigned = -1000"),
        ("probcover", {}, {"min_region": 0}, "min_region = 0"),
    ],
)
def test_what_no_selection_needs_is_refused(name, arrays, numbers, said):
    with pytest.raises(UserError, match=f"the server asks with {said}"):
        check_question(arrays, numbers, 6, halves(name).most)


def test_no_sample_is_measured_from_many_centres_in_one_question():
    """All around one sample: its distances to a hundred centres would give it away, however coarse they are."""
    (rows,) = parts_of(5, (300,), d=16)
    near = (rows[:1] + 0.05 * np.random.default_rng(0).normal(size=(100, 16))).astype(np.float16)
    held = Rows(Holder(rows, np.zeros(300, bool)))
    found, distances = held.nearest(near, np.ones(300, bool), OFTEN)
    assert np.bincount(found).max() == OFTEN
    units = near.astype(np.float64) / np.linalg.norm(near.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_allclose(distances, np.linalg.norm(units - held.x.astype(np.float64)[found], axis=1), atol=1e-5)


@pytest.mark.parametrize("name", list(METHODS))
def test_what_is_summed_is_told_to_all_alike(name):
    """Masks are bound to it: what clients are told alone of such a question is named in `OWN`."""
    method, parts = aggregate_method(name), parts_of(2, (90, 80, 70), d=6)

    def watched(coordinator):
        sent = None
        while True:
            try:
                question = coordinator.send(sent)
            except StopIteration as done:
                return done.value
            assert question.summed == (question.kind in method.summed)
            if question.summed:
                assert set().union(*question.own) <= set(OWN)
            sent = yield question

    consortium = Consortium([90, 80, 70], [2, 0, 0], [8, 8, 8], 6, masked=True)
    holders = [Holder(rows, np.arange(len(rows)) < had) for rows, had in zip(parts, (2, 0, 0))]
    coordinator = watched(method.coordinate(consortium, np.random.default_rng(0)))
    picks, _ = run(coordinator, holders, method.answer)
    assert len(picks) == 24


def test_the_question_that_masks_are_bound_to():
    config = {"digest": "ab", "track": "main", "method": "probcover", "kind": "count", "numbers": "{}", "asked": 3}
    arrays = {"balls": np.zeros((2, 6)), "mine": np.arange(2), "wanted": np.arange(3)}
    asked = common_question(arrays, config)
    assert asked == common_question({**arrays, "mine": np.arange(9), "wanted": np.arange(1)}, {**config, "asked": 9})
    assert asked == common_question({"balls": arrays["balls"]}, {**config, "session": "s", "round": 4})
    for other in ("digest", "track", "method", "kind", "numbers"):
        assert asked != common_question(arrays, {**config, other: "other"})
    assert asked != common_question({**arrays, "balls": np.ones((2, 6))}, config)
