"""Noised counts as they leave a client: what one sample more or less tells, measured against what is charged."""

from functools import partial

import numpy as np
import pytest

from aggregate_choice import parts_of
from cofal.errors import UserError
from cofal.federation.holding import _noised
from cofal.privacy.accountant import site_account
from cofal.privacy.counting_noise import noisy
from cofal.privacy.policy import CountNoise
from cofal.selection.aggregate.cells import nearest
from cofal.selection.aggregate.coverstate import Offers, State
from cofal.selection.aggregate.exchange import Consortium, Holder, Question
from cofal.selection.auto_aggregate import halves

LEAST, SCALE = 5, 2.0
DRAWS = 20_000
NOISE = CountNoise(mechanism="laplace", parameter=SCALE, epsilon=1e6, delta=0)


def rows_around(corners, d=8):
    """Unit rows close to the given corners of the cube, one for each."""
    x = np.eye(d)[list(corners)] + 0.01 * np.random.default_rng(0).normal(size=(len(corners), d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


ROWS = rows_around([0] * LEAST + [1] * 20)
TAKEN = np.arange(len(ROWS)) < 2
BALL = np.eye(8, dtype=np.float16)[:1]


def balls(count):
    """ProbCover's question about `count` balls, all around the first corner."""
    state = State(Consortium([25, 25], [0, 0], [1, 1], 8), 0.6, LEAST, exact=False)
    offers = Offers(8)
    offers.add([{"centers": np.repeat(BALL, count, axis=0), "levels": np.zeros(count, np.uint8)}])
    history = {"prefix": np.zeros((1, 2), np.int32), "radii": np.array([0.6]), "tops": np.array([9])}
    history["wanted"] = np.zeros(1, np.int32)
    return state.question("count", summed=True, **history, **offers.balls)


CLUSTERS = {"centers": np.eye(8, dtype=np.float32)[:2]}
SUMS = Question("sums", {"centers": CLUSTERS["centers"][None]}, {"bits": 20, "min_region": LEAST}, summed=True)
LIKENESS = Question("likeness", CLUSTERS, {"min_region": LEAST, "seed": 0, "blurred": 0})
# Method, question, and what of the answer is looked at: beside the counts at the threshold, others never change.
CASES = {
    "a ball": ("probcover", balls(1), lambda told: told["gains"]),
    "two balls": ("probcover", balls(2), lambda told: np.concatenate([told["gains"], told["overlaps"]], axis=1) > 0),
    "a cluster": ("typiclust", SUMS, lambda told: np.stack([told["counts"][:, 0], told["labeled"][:, 0]], axis=1)),
    "a common cell": ("likeness", LIKENESS, lambda told: told["counts"][:, :1]),
}


def answer(method, question, noise, rows=ROWS, taken=TAKEN):
    holder = Holder(rows, taken, noise=noise)
    return halves(method).answer(holder, question.kind, question.told(0), question.numbers)


def many(seed):
    """Noise that gives every count DRAWS times: a whole sample of answers from one."""
    draw = np.random.default_rng(seed).bytes
    return lambda counts: {
        name: noisy(np.tile(each, (DRAWS, 1)), "laplace", SCALE, draw) for name, each in counts.items()
    }


def largest_loss(one, other):
    """The largest log ratio of outcomes between two samples (DRAWS, m), less five standard errors of each."""
    outcomes, which = np.unique(np.concatenate([one, other]), axis=0, return_inverse=True)
    counts = 1 + np.stack([np.bincount(part, minlength=len(outcomes)) for part in np.split(which.ravel(), 2)])
    return float((np.abs(np.log(counts[0] / counts[1])) - 5 * np.sqrt((1 / counts).sum(0))).max())


@pytest.mark.parametrize("case", CASES)
def test_the_loss_at_the_threshold_is_at_most_what_is_charged(tmp_path, case):
    """With one sample less, a group is too small to be spoken of: the counts are 5 and 4, and not 5 and 0."""
    method, question, seen = CASES[case]
    told = [seen(answer(method, question, many(seed), ROWS[seed:], TAKEN[seed:])) for seed in (0, 1)]
    answer(method, question, partial(_noised, tmp_path, NOISE, halves(method).counts, b"asked"))
    charged = site_account(tmp_path, NOISE).spent()
    assert charged == {"a ball": 2, "two balls": 4, "a cluster": 2, "a common cell": 1}[case] / SCALE
    assert largest_loss(*told) <= charged
    if case != "two balls":
        assert ((told[0] == 0) | (told[0] >= LEAST))[:, 0].all()


def test_the_measurement_finds_the_loss_of_counts_that_are_suppressed_before_the_noise():
    told = [many(seed)({"counts": np.array([count], np.int32)})["counts"] for seed, count in ((0, 5), (1, 0))]
    assert largest_loss(*told) > 3 / SCALE


def test_sums_are_silent_by_the_true_count_whatever_the_noise():
    def more(counts):
        return {name: array + 40 for name, array in counts.items()}

    found = answer("typiclust", SUMS, more, ROWS[1:], TAKEN[1:])
    assert found["counts"][0] > LEAST
    assert not found["sums"][0].any()
    assert found["sums"][1].any()


@pytest.mark.parametrize("method", ["typiclust", "maxherding", "likeness"])
def test_rows_are_counted_by_the_nearest_mean_told_where_counts_get_noise(method):
    """So that one row is in one group whatever the others are, unlike in the client's own k-means."""
    rows = parts_of(5, (200,))[0]
    question = Question("cells", numbers={"most": 60, "min_region": LEAST, "seed": 0, "fine": 1})
    raw = {}

    def keep(counts):
        raw.update(counts)
        return dict(counts)

    told = answer(method, question, keep, rows, np.zeros(len(rows), bool))
    homes = nearest(rows, told["means"].astype(np.float32))[0]
    np.testing.assert_array_equal(raw["counts"], np.bincount(homes, minlength=len(told["means"])))
    own = answer(method, question, None, rows, np.zeros(len(rows), bool))
    np.testing.assert_array_equal(own["means"], told["means"])
    assert own["counts"].tolist() != raw["counts"].tolist()  # else this data shows nothing


def test_an_answer_without_counts_is_not_charged(tmp_path):
    counts = {"gains": np.empty(0, np.int32), "overlaps": np.empty(0, np.int32)}
    assert not _noised(tmp_path, NOISE, halves("probcover").counts, b"asked", counts)["gains"].size
    assert not (tmp_path / "privacy" / "spent.json").exists()


def test_answers_end_with_the_budget_and_those_given_before_stay(tmp_path):
    budget = CountNoise(mechanism="laplace", parameter=SCALE, epsilon=1.0, delta=0)

    def ask(question):
        return answer("typiclust", SUMS, partial(_noised, tmp_path, budget, halves("typiclust").counts, question))

    first = ask(b"first")  # two counts a sample: all of the budget
    before = (tmp_path / "privacy" / "spent.json").read_bytes()
    with pytest.raises(UserError, match="privacy budget spent"):
        ask(b"second")
    for name, array in ask(b"first").items():
        np.testing.assert_array_equal(array, first[name])
    assert (tmp_path / "privacy" / "spent.json").read_bytes() == before
