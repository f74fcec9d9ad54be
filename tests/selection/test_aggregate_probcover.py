"""FederatedProbCover: the paper's algorithm, exact budgets, what is let out of a client, and purity of the answers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from aggregate_choice import choose_with
from cofal.errors import UserError
from cofal.selection.aggregate import batches, overlaps
from cofal.selection.aggregate.balls import balls_of
from cofal.selection.aggregate.cells import canonical
from cofal.selection.aggregate.coverstate import Offers, State
from cofal.selection.aggregate.exchange import Consortium, Holder, by_turns, total
from cofal.selection.aggregate.probcover import PROBCOVER
from cofal.selection.aggregate.regions import LEVELS, Rows, Sent, centers_of, radius_of, received
from cofal.selection.pool import Pool
from cofal.selection.radius import estimate_radius


def unit(x):
    x = np.asarray(x, dtype=np.float64)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def clustered(seed, sizes, d=8, groups=6, spread=0.35):
    """Rows of each client around the same centres."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(groups, d))
    return [unit(centers[rng.integers(groups, size=n)] + spread * rng.normal(size=(n, d))) for n in sizes]


choose = partial(choose_with, PROBCOVER)


def paper(parts, budgets, delta):
    """Algorithm 1 in the plainest code: dense distances, every region from scratch."""
    covered = [np.zeros(len(x), dtype=bool) for x in parts]
    free, left, order = [np.ones(len(x), dtype=bool) for x in parts], list(budgets), []
    near = [np.linalg.norm(x[:, None].astype(np.float64) - x[None], axis=2) <= delta for x in parts]

    def distances(x, c):
        return np.linalg.norm(x.astype(np.float64) - c, axis=1)

    while sum(left):
        proposals = []
        for x, balls, done in zip(parts, near, covered):
            gains = (balls & ~done).sum(axis=1)
            if gains.max() > 0:
                members = balls[np.argmax(gains)] & ~done
                mean = x[members].astype(np.float64).sum(axis=0)
                sent = (mean / np.linalg.norm(mean)).astype(np.float16).astype(np.float64)
                proposals.append(sent / np.linalg.norm(sent))
        gains = [
            sum(int(((distances(x, c) <= delta) & ~done).sum()) for x, done in zip(parts, covered)) for c in proposals
        ]
        if not gains or max(gains) == 0:
            covered = [np.zeros(len(x), dtype=bool) for x in parts]
            continue
        best = proposals[int(np.argmax(gains))]
        offers = [
            np.where(ok, distances(x, best), np.inf) if left[k] else np.full(len(x), np.inf)
            for k, (x, ok) in enumerate(zip(parts, free))
        ]
        client = int(np.argmin([offer.min() for offer in offers]))
        row = int(np.argmin(offers[client]))
        order.append((client, row))
        free[client][row] = False
        left[client] -= 1
        covered = [done | (distances(x, best) <= delta) for x, done in zip(parts, covered)]
    return order


def in_hash_order(parts):
    """Each client's rows in the order in which its ties are broken."""
    return [canonical(Holder(x, np.zeros(len(x), dtype=bool)))[0] for x in parts]


def recording(answers):
    """An `answer` that notes each answer, with the holder and the question, in `answers`."""

    def answer(holder, kind, arrays, numbers):
        answers.append((holder, kind, arrays, PROBCOVER.answer(holder, kind, arrays, numbers)))
        return answers[-1][-1]

    return answer


def without_cache(holder, kind, arrays, numbers):
    """As if every question met a fresh process."""
    fresh = Holder(holder.rows, holder.taken)
    found = PROBCOVER.answer(fresh, kind, arrays, numbers)
    holder.picked = fresh.picked
    return found


@pytest.mark.parametrize("delta", [0.3, 0.8])
def test_the_papers_schedule_is_algorithm_one(delta):
    for seed in range(6):
        parts = in_hash_order(clustered(seed, (60, 45, 52)))
        order, cost = choose(parts, (3, 2, 14), delta=delta, schedule="paper", min_region=1)
        assert order == paper(parts, (3, 2, 14), delta)
        assert cost.rounds <= 3 * 19 + 1 + 2 * 19  # three a pick, one to settle; a new pass may cost two


@st.composite
def consortia(draw):
    """Clients of any size, with copies, labelled samples and budgets of any share of what is left."""
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    sizes = draw(st.lists(st.integers(0, 30), min_size=1, max_size=4).filter(sum))
    parts = clustered(seed, sizes, d=4, groups=3)
    if draw(st.booleans()):
        parts = [x[rng.integers(max(1, len(x) // 3), size=len(x))] if len(x) else x for x in parts]
    labeled = [rng.permutation(n)[: draw(st.integers(0, n))] for n in sizes]
    budgets = [draw(st.integers(0, n - len(known))) for n, known in zip(sizes, labeled)]
    return parts, budgets, labeled


@settings(max_examples=60, deadline=None)
@given(consortia(), st.sampled_from(["batched", "paper"]), st.sampled_from([1e-9, 0.05, 0.6, 1.5]), st.integers(1, 6))
def test_budgets_are_spent_exactly(given_, schedule, delta, min_region):
    parts, budgets, labeled = given_
    _, cost = choose(parts, budgets, labeled, delta=delta, schedule=schedule, min_region=min_region)
    if schedule == "batched":
        assert cost.rounds <= 10 + sum(budgets) / 20


@pytest.mark.parametrize("total", [1, 4, 12, 20, 60, 200])
@pytest.mark.parametrize("labels", [0, 5])
@pytest.mark.parametrize("delta", [0.6, "auto"])
def test_round_trips_of_the_batched_schedule(total, labels, delta):
    parts = clustered(1, (90, 90, 90, 90))
    labeled = [np.arange(labels) for _ in parts]
    budgets = [total // 4 + (k < total % 4) for k in range(4)]
    _, cost = choose(parts, budgets, labeled, delta=delta)
    assert cost.rounds <= 10 + total / 20


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 0), (4, 3)])
def test_without_any_estimate_the_radius_is_that_of_a_pool_without_structure(sizes):
    budgets, answers = [min(1, n) for n in sizes], []
    choose(clustered(0, sizes), budgets, delta="auto", answer=recording(answers))
    assert all(found["radius"] == [0] for _, kind, _, found in answers if kind == "radius")
    centrally = estimate_radius(Pool(clustered(0, (1,))), np.random.default_rng(0))
    assert {arrays["radii"][0] for _, _, arrays, _ in answers if "radii" in arrays} == {centrally}


def test_a_client_without_an_estimate_leaves_the_radius_to_the_others():
    """A radius is the distance of two samples: told in steps, and of fewer than `min_region` samples not at all."""
    parts, answers = clustered(0, (4, 60)), []
    choose(parts, (1, 8), delta="auto", answer=recording(answers))
    assert answers[0][3]["radius"] == [0]
    radius = float(answers[1][3]["radius"][0])
    assert radius == pytest.approx(round(radius / 0.02) * 0.02)
    assert 0 < radius < 2
    assert {arrays["radii"][0] for _, _, arrays, _ in answers if "radii" in arrays} == {radius}


@pytest.mark.parametrize(
    ("schedule", "masked", "asked"),
    [
        ("batched", False, {"refresh"}),
        ("batched", True, {"propose", "count"}),
        ("paper", False, {"propose", "count"}),
    ],
)
@pytest.mark.parametrize("labels", [0, 7])
def test_no_small_region_and_no_small_count_leaves_a_client(schedule, masked, asked, labels):
    least, delta = 5, 0.5
    answers = []
    parts = clustered(3, (80, 50, 4), spread=0.5)
    labeled = [np.arange(min(labels, len(x) - 1)) for x in parts]
    given_ = {"delta": delta, "schedule": schedule, "min_region": least, "masked": masked}
    for budgets in ((12, 9, 1), (6, 4, 1)):  # the first leaves labels to the clients alone, the second does not
        choose(parts, budgets, labeled, answer=recording(answers), **given_)
    assert {kind for _, kind, _, _ in answers} >= {*asked, "nearest", "settle"}
    for holder, kind, _, found in answers:
        if kind in ("count", "refresh"):
            for counts in (found["gains"], found["overlaps"], found["bare"]):
                assert ((counts == 0) | (counts >= least)).all()
        for center, level in zip(found.get("centers", ()), found.get("levels", ())):
            assert len(holder.rows) >= least
            center = center.astype(np.float64) / np.linalg.norm(center.astype(np.float64))
            distances = np.linalg.norm(holder.rows - center, axis=1)
            assert (distances <= radius_of(delta, level) + 1e-6).sum() >= least or level == LEVELS - 1


@pytest.mark.parametrize("schedule", ["batched", "paper"])
def test_no_embedding_and_no_list_of_samples_leaves_a_client(schedule):
    lengths = []
    for size in (40, 160):
        answers = []
        parts = clustered(5, (size, size), d=16)
        choose(parts, (8, 8), answer=recording(answers), delta=0.7, schedule=schedule)
        lengths.append(max(len(array) for *_, found in answers for array in found.values() if array.ndim))
        rows = np.concatenate(parts)
        for *_, found in answers:
            for array in found.values():
                if array.ndim == 2:
                    for row in unit(array[array.any(axis=1)]):  # of sums too: a single row's sum has its direction
                        assert np.abs(rows - row).max(axis=1).min() > 1e-3
    assert max(lengths) <= 40 * 16  # set by the budget: proposals of a batch and each two of them


def test_what_was_sent_is_never_sent_again_less_a_few():
    """Any two regions that a client lets out in a batched selection differ by at least min_region samples."""
    from cofal.selection.aggregate import covering

    proposed, summed, centroids, sums = {}, {}, covering.centroids, Rows.sums

    def proposing(rows, regions, *arguments):
        proposed.setdefault(rows.n, set()).update(frozenset(members.tolist()) for members, _ in regions)
        return centroids(rows, regions, *arguments)

    def summing(rows, regions, *arguments):
        summed.setdefault(rows.n, set()).update(frozenset(members.tolist()) for members in regions if len(members))
        return sums(rows, regions, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covering, "centroids", proposing)
        patch.setattr(Rows, "sums", summing)
        choose(clustered(2, (200, 201), spread=0.5), (30, 30), delta=0.5, min_region=5)
    for size, regions in proposed.items():
        assert len(regions) > 20
        assert summed[size] - regions, "regions of others' centres are summed too"
        told = [*summed[size]]  # the same region may be told of twice
        assert regions <= summed[size]
        assert all(len(region) >= 5 for region in told)
        assert all(len(a ^ b) >= 5 for i, a in enumerate(told) for b in told[:i])


def test_masked_sums_give_the_same_picks_in_more_round_trips():
    """Under masks totals are asked for apart from what each client tells openly."""
    parts = clustered(9, (70, 60, 50))
    labeled = [np.arange(4), np.arange(0), np.arange(1)]
    order, cost = choose(parts, (9, 7, 12), labeled, delta=0.6)
    asked = []

    def noting(holder, kind, arrays, numbers):
        asked.append((kind, PROBCOVER.answer(holder, kind, arrays, numbers)))
        return asked[-1][1]

    masked, apart = choose(parts, (9, 7, 12), labeled, delta=0.6, answer=noting, masked=True)
    assert masked == order
    assert cost.rounds < apart.rounds <= 2 * cost.rounds
    for kind, found in asked:
        assert not {"gains", "overlaps", "bare", "sums"} & set(found) or kind == "count", "only under masks"


def test_a_centre_moves_to_the_middle_of_all_that_it_covers():
    """One client proposes the middle of its own few rows; the pick lies at the middle of everyone's."""
    rng = np.random.default_rng(0)
    middle = np.eye(8)[0]
    few = unit(middle + 0.3 * np.eye(8)[1] + 0.05 * rng.normal(size=(6, 8)))
    many = unit(middle + 0.05 * rng.normal(size=(60, 8)))
    state = State(Consortium([6, 60], [0, 0], [1, 1], 8), 0.6, 5, exact=False)
    offers = Offers(8)
    offers.add([{"centers": centers_of(few.sum(0, keepdims=True)), "levels": np.zeros(1, np.uint8)}])
    state.accept(offers, [0])
    history = {
        "prefix": np.array([[1, 0]]),
        "radii": np.array([0.6]),
        "tops": np.array([9]),
        "wanted": np.zeros(1, np.int32),
    }
    question = state.question("count", summed=True, **history, **Offers(8).balls)
    answers = [
        PROBCOVER.answer(Holder(x, np.zeros(len(x), bool)), "count", question.told(0), question.numbers)
        for x in (few, many)
    ]
    state.refine(total(answers)["sums"])
    expected = np.concatenate([few, many]).sum(0)
    assert received(state.refined)[0] @ (expected / np.linalg.norm(expected)) > 0.9999
    assert received(state.centers)[0] @ middle < 0.98


def test_sets_that_differ_by_few_disclose():
    sent = Sent(20)
    assert not sent.discloses(np.arange(10), 3)
    sent.add(np.arange(10))
    assert sent.like(np.arange(8), 3).tolist() == list(range(10))
    assert sent.discloses(np.arange(10), 3)
    assert sent.discloses(np.arange(8), 3)
    assert not sent.discloses(np.arange(7), 3)
    for start in range(200):  # more than there is room for at first
        sent.add(np.array([start % 20]))
    assert sent.discloses(np.array([7]), 1)


@given(st.lists(st.sets(st.integers(0, 149), min_size=1), max_size=12), st.sets(st.integers(0, 149)), st.integers(1, 9))
def test_the_set_most_alike_is_found(sets, members, least):
    sent = Sent(150)
    for each in sets:
        sent.add(np.array(sorted(each)))
    differing = [len(each ^ members) for each in sets]
    found = sent.like(np.array(sorted(members), dtype=np.int64), least)
    if min(differing, default=least) >= least:
        assert found is None
    else:
        assert set(found.tolist()) == sets[int(np.argmin(differing))]


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200, 1100])
def test_balls_are_those_of_dense_distances(n):
    """Half of the rows on axes: many pairs lie at an edge, and the graph is mirrored across words of 64 rows."""
    rng = np.random.default_rng(n)
    x = unit(rng.normal(size=(n, 4)))
    onto = np.flatnonzero(rng.random(n) < 0.5)
    x[onto] = 0
    x[onto, rng.integers(4, size=len(onto))] = rng.choice([-1, 1], size=len(onto))  # 0, sqrt 2 or 2 from one another
    radii = [0.7, 2**0.5, 1.9]
    distances = ((x[:, None].astype(np.float64) - x[None].astype(np.float64)) ** 2).sum(axis=2)
    mask = rng.random(n) < 0.7
    for balls, radius in zip(balls_of(x, radii), radii):
        inside = distances <= radius * radius
        assert balls.candidates == n
        assert np.array_equal(balls.sizes(mask), inside[mask].sum(axis=0))
        for candidate in (0, n // 2, n - 1):
            assert np.array_equal(balls.members(candidate, mask), np.flatnonzero(inside[candidate] & mask))


@pytest.mark.parametrize("schedule", ["batched", "paper"])
def test_answers_come_from_the_question_alone(schedule):
    parts = clustered(7, (70, 50, 60))
    labeled = [np.arange(3), np.arange(0), np.arange(2)]
    usual = choose(parts, (9, 0, 12), labeled, delta=0.6, schedule=schedule)
    assert choose(parts, (9, 0, 12), labeled, answer=without_cache, delta=0.6, schedule=schedule) == usual


@pytest.mark.parametrize("schedule", ["batched", "paper"])
@pytest.mark.parametrize("delta", [0.6, "auto"])
def test_the_order_of_a_clients_samples_does_not_matter(schedule, delta):
    parts = clustered(8, (70, 60))
    order, _ = choose(parts, (9, 12), delta=delta, schedule=schedule)
    shuffles = [np.random.default_rng(1).permutation(len(x)) for x in parts]
    shuffled, _ = choose([x[s] for x, s in zip(parts, shuffles)], (9, 12), delta=delta, schedule=schedule)
    assert [(client, int(shuffles[client][row])) for client, row in shuffled] == order


def test_labelled_surroundings_are_left_for_later():
    """Two clients hold the same clusters; where one has labels, neither picks before the rest is covered."""
    parts = clustered(4, (120, 120), groups=6, spread=0.12)
    label = {}
    for k, x in enumerate(parts):
        near = np.linalg.norm(x[:, None] - parts[0][None], axis=2) < 0.7
        label[k] = near.argmax(axis=1)  # the first sample of client 0 that is near names the cluster
    names = sorted(set(label[0].tolist()))
    known = [np.flatnonzero(label[0] == names[0])[:2], np.empty(0, np.int64)]
    order, _ = choose(parts, (2, 3), known, delta=0.7)
    assert sorted(int(label[client][row]) for client, row in order) == names[1:]


@pytest.mark.parametrize("seed", range(4, 12))
def test_a_second_pass_goes_over_the_same_regions(seed):
    """What two balls have in common is told roughly; what seems left of a covered one is not taken for a gain."""
    parts = clustered(seed, (60, 60), groups=3, spread=0.1)
    order, _ = choose(parts, (6, 6), delta=0.9)
    rows = np.array([parts[client][row] for client, row in order])
    group = (np.linalg.norm(rows[:, None] - rows[None], axis=2) < 0.8).argmax(axis=1)
    assert sorted(np.bincount(group)[np.unique(group)].tolist()) == [4, 4, 4]


@pytest.mark.parametrize(
    "wrong", [{"delta": -1}, {"delta": "small"}, {"delta": True}, {"schedule": "fast"}, {"min_region": 0}]
)
def test_wrong_parameters_are_named(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(UserError, match=f"{name} = {value!r}"):
        choose(clustered(0, (20, 20)), (1, 1), **wrong)


def digits():
    """Centred unit rows, and their classes."""
    x, y = load_digits(return_X_y=True)
    return unit(x - x.mean(axis=0)), y


def test_once_nearly_all_is_covered_the_picks_do_not_pile_up():
    """At this radius 12 picks cover the digits; going over the same few regions again gave 11.75 of 60 to one digit."""
    x, y = digits()
    most = []
    for seed in range(4):
        split = np.random.default_rng(seed).permutation(len(x))[:600].reshape(4, 150)
        known = [np.empty(0, np.int64)] * 4
        for budget in (3, 5, 10, 15):
            order, _ = choose([x[s] for s in split], [budget - len(k) for k in known], known, delta=0.9)
            known = [np.append(k, [row for c, row in order if c == client]) for client, k in enumerate(known)]
            known = [k.astype(np.int64) for k in known]
        most.append(np.bincount(np.concatenate([y[s][k] for s, k in zip(split, known)])).max())
    assert np.mean(most) <= 10.5


def test_what_is_too_sparse_to_speak_of_is_each_clients_own():
    """Past the dense places clients choose alone what nobody covers, instead of ever wider balls or a new pass."""
    x, _ = digits()
    gained = []
    for seed in range(3):
        split = np.random.default_rng(seed).permutation(len(x))[:1200].reshape(4, 300)
        parts, answers = [x[s] for s in split], []
        order, cost = choose(parts, (25, 25, 25, 25), answer=recording(answers), delta=0.7)
        told = [int(arrays["alone"]) for _, kind, arrays, _ in answers if kind == "settle"]
        assert min(told) > 0, "some labels are left to every client"
        assert sum(told) <= 100 * (1 - batches.TOGETHER) + 1
        assert [client for client, _ in order[-sum(told) :]] == by_turns(np.array(told))
        assert cost.rounds < 15
        rows = np.concatenate(parts)
        picked = np.array([parts[client][row] for client, row in order])
        letter, _ = choose(parts, (25, 25, 25, 25), delta=0.7, schedule="paper")
        letters = np.array([parts[client][row] for client, row in letter])
        covered = [((2 - 2 * rows @ each.T).min(1) <= 0.7**2).mean() for each in (picked, letters)]
        gained.append(covered[0] / covered[1])
    assert np.mean(gained) > 1.02


def test_small_remains_of_a_level_come_after_the_next_level():
    """Three disjoint balls: a large one and a small one at level 0, one at level 1."""
    gains, levels = np.array([40, 6, 25]), np.array([0, 0, 1], np.uint8)
    clients, left = np.zeros(3, np.int64), np.array([3])
    plain, _ = overlaps.choose(gains, np.zeros((3, 3), np.int64), levels, clients, left, 3)
    assert plain == [0, 1, 2]
    later, _ = overlaps.choose(gains, np.zeros((3, 3), np.int64), levels, clients, left, 3, least=10)
    assert later == [0, 2, 1], "and still taken where nothing else is left"
