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
        check_question(method.asked, kind, arrays, numbers, 6, method.most)
        return method.answer(holder, kind, arrays, numbers)

    budgets = [int(share * size) for size in sizes]
    labeled = [np.arange((size - budget) // 3) for size, budget in zip(sizes, budgets)]
    choose_with(method, parts, budgets, labeled, answer=answer, masked=masked, min_region=least, **params)
    assert ("settle" in kinds) == (sum(budgets) > 0)


def test_the_measurement_of_auto_keeps_the_bounds():
    parts, method, kinds = parts_of(1, (200, 300), d=6), halves("likeness"), set()

    def answer(holder, kind, arrays, numbers):
        kinds.add(kind)
        check_question(method.asked, kind, arrays, numbers, 6, method.most)
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
    assert number_of_worth_cells(10**6, 10**6) == halves("likeness").most["clusters"]


def honest(name, masked=False, **params):
    """(kind, arrays, numbers) of the last question of each kind that a client is asked in one selection."""
    method, parts, asked = halves(name), parts_of(2, (90, 80, 70), d=6), {}

    def answer(holder, kind, arrays, numbers):
        asked[kind] = dict(arrays), dict(numbers)
        return method.answer(holder, kind, arrays, numbers)

    consortium = Consortium([90, 80, 70], [2, 2, 2], [8, 8, 8], 6, masked)
    run(
        method.coordinate(consortium, np.random.default_rng(0), **params),
        [Holder(rows, np.arange(len(rows)) < 2) for rows in parts],
        answer,
    )
    return asked


def check(name, kind, arrays, numbers):
    method = halves(name)
    check_question(method.asked, kind, arrays, numbers, 6, method.most)


ALL = [*METHODS, "likeness", "alone-maxherding"]
HONEST = {name: honest(name, **({"seed": 3} if name.startswith("alone") else {})) for name in ALL}
HONEST["probcover"] |= honest("probcover", masked=True) | honest("probcover", delta="auto")
EACH = [(name, kind) for name, asked in HONEST.items() for kind in asked]


def test_every_kind_of_question_is_known():
    for name, asked in HONEST.items():
        assert set(asked) == set(halves(name).asked)
        for kind, (arrays, numbers) in asked.items():
            check(name, kind, arrays, numbers)


@pytest.mark.parametrize(("name", "kind"), EACH)
def test_what_is_missing_or_strange_is_refused(name, kind):
    arrays, numbers = HONEST[name][kind]
    for lacking in arrays:
        with pytest.raises(UserError, match=f"asks with no array '{lacking}'"):
            check(name, kind, {key: array for key, array in arrays.items() if key != lacking}, numbers)
    for lacking in set(numbers) - {"min_region"}:
        with pytest.raises(UserError, match=f"asks with no number '{lacking}'"):
            check(name, kind, arrays, {key: value for key, value in numbers.items() if key != lacking})
    with pytest.raises(UserError, match="asks with the array 'other'"):
        check(name, kind, {**arrays, "other": np.zeros(3)}, numbers)
    with pytest.raises(UserError, match="asks with the number 'other'"):
        check(name, kind, arrays, {**numbers, "other": 1})
    with pytest.raises(UserError, match="asks with a question of the kind 'other'"):
        check(name, "other", arrays, numbers)


@pytest.mark.parametrize(("name", "kind"), EACH)
def test_arrays_of_another_type_shape_or_length_are_refused(name, kind):
    """Whole numbers where real ones are due would pass every bound of real ones."""
    arrays, numbers = HONEST[name][kind]
    for changed, array in arrays.items():
        types = {"f": np.int64, "i": np.float64, "u": np.float64, "b": np.int8}
        others = [array.astype(types[array.dtype.kind]), array[None], array.astype(str)]
        if array.ndim and halves(name).asked[kind].arrays[changed].lengths[-1] not in ("mine", "picks", "clusters"):
            others.append(np.concatenate([array, array[..., :1]], axis=-1) if array.size else np.zeros(7))
        for other in others:
            with pytest.raises(UserError, match="the server asks with"):
                check(name, kind, {**arrays, changed: other}, numbers)


@pytest.mark.parametrize(
    ("name", "kind", "change", "said"),
    [
        ("maxherding", "offers", {"candidates": 1.5 * np.eye(6)}, "candidates 1.5 long"),
        ("maxherding", "offers", {"candidates": np.full((1, 6), np.nan)}, "candidates of nan"),
        ("maxherding", "offers", {"candidates": np.eye(7)}, "candidates of 7 dimensions where 6 are due"),
        ("maxherding", "offers", {"candidates": np.zeros((5000, 6))}, "5000 candidates where 4096 are the most"),
        ("maxherding", "gains", {"offered": 2.0}, "offered of 2"),
        ("maxherding", "gains", {"cosines": np.inf}, "cosines of inf"),
        ("maxherding", "gains", {"cosines": -1e6}, r"cosines of -1e\+06"),
        ("maxherding", "gains", {"sharpness": 0.0}, "sharpness = 0"),
        ("maxherding", "gains", {"bits": 60}, "bits = 60"),
        ("maxherding", "gains", {"bits": 0.5}, "bits = 0.5"),
        ("maxherding", "gains", {"centers": 9999}, r"centers of 1e\+04"),
        ("typiclust", "sums", {"centers": np.concatenate([np.eye(6)[None], 1e6 * np.eye(6)[None]])}, "long"),
        ("typiclust", "sums", {"centers": np.zeros((1, 501, 6))}, "501 clusters where 500 are the most"),
        ("typiclust", "sums", {"centers": np.zeros((2000, 3, 6))}, "2000 iterations where 1000 are the most"),
        ("typiclust", "nearest", {"means": 3.0}, "means 7.35 long"),
        ("typiclust", "nearest", {"sizes": -1}, "sizes of -1"),
        ("typiclust", "nearest", {"clients": 0}, "clients = 0"),
        ("typiclust", "settle", {"clusters": 400}, "clusters of 400"),
        ("probcover", "count", {"balls": np.zeros((10_000, 6))}, "10000 balls where 2048 are the most"),
        ("probcover", "count", {"levels": 200}, "levels of 200"),
        ("probcover", "count", {"radii": 3.0}, "radii of 3"),
        ("probcover", "count", {"prefix": -3}, "prefix of -3"),
        ("probcover", "count", {"assigned": -1000}, "assigned = -1000"),
        ("probcover", "count", {"min_region": 0}, "min_region = 0"),
        ("probcover", "count", {"delta": -1}, "delta = -1"),
        ("likeness", "sums", {"centers": np.zeros((1, 5001, 6))}, "5001 clusters where 5000 are the most"),
    ],
)
def test_what_no_selection_needs_is_refused(name, kind, change, said):
    """`change`: a number, an array, or one value in all places of an array."""
    arrays, numbers = (dict(part) for part in HONEST[name][kind])
    ((key, value),) = change.items()
    if key in numbers:
        numbers[key] = value
    else:
        arrays[key] = value if isinstance(value, np.ndarray) else np.full_like(arrays[key], value)
    with pytest.raises(UserError, match=f"the server asks with .*{said}"):
        check(name, kind, arrays, numbers)


def test_a_question_tells_of_so_many_trips_and_no_more():
    arrays, numbers = HONEST["probcover"]["count"]
    trips = {name: np.repeat(arrays[name][:1], 100, axis=0) for name in ("prefix", "radii", "tops", "wanted")}
    with pytest.raises(UserError, match="the server asks with 100 trips where 64 are the most"):
        check("probcover", "count", arrays | trips, numbers)


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
            assert question.summed == method.asked[question.kind].summed
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
