"""Kinds that both the embedding and the holder of a row tell apart, and the coverage of one's own kind."""

import numpy as np
import pytest

import cofal
from cofal.rng import generator
from cofal.selection.greedy import Quota, greedy
from cofal.selection.kernels import make_kernel
from cofal.selection.kind_coverage import KindCoverage
from cofal.selection.kinds import beside_kinds, kindred, kinds, leaning
from cofal.selection.pool import Budgets, Pool

METHODS = ("probcover", "typiclust", "maxherding")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def blurred(rng, rows=150, d=16, apart=0.5):
    """Two kinds that overlap, each held almost entirely by a client of its own, and the kind of each row."""
    centers = np.zeros((2, d))
    centers[0, 0] = centers[1, 1] = apart
    held = [np.repeat([0, 1], [rows - rows // 10, rows // 10]), np.repeat([0, 1], [rows // 10, rows - rows // 10])]
    embeddings = [centers[own] + rng.normal(0, 0.35, (rows, d)) for own in held]
    return embeddings, np.concatenate(held)


def test_clients_of_one_source_lean_nowhere():
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.ones(12), 200).astype(np.float32)
    assert not leaning(np.tile(chances, (4, 1)), np.tile(chances, (4, 1)), np.arange(5) * 200).any()
    assert not leaning(chances, chances, np.array([0, 200])).any()
    drawn = rng.dirichlet(np.ones(12), 800).astype(np.float32)
    assert np.abs(leaning(drawn, drawn, np.arange(5) * 200)).max() < 0.1


@pytest.mark.parametrize("sure", [1.0, 0.4])
def test_clients_lean_towards_what_they_have_more_of_however_unsure_the_kinds(sure):
    kind = np.repeat([0, 1, 2, 0, 1, 2], [90, 10, 50, 10, 90, 50])
    chances = (sure * np.eye(3)[kind] + (1 - sure) / 3).astype(np.float32)
    chances += np.random.default_rng(0).uniform(-0.05, 0.05, chances.shape).astype(np.float32)
    lean = leaning(chances, chances, np.array([0, 150, 300, 300]))
    assert lean[0, 0] > 0.25 * sure > 0 > -0.25 * sure > lean[0, 1]
    assert lean[1, 1] > 0.25 * sure > 0 > -0.25 * sure > lean[1, 0]
    assert np.abs(lean[:2, 2]).max() < 0.05
    assert np.abs(lean[2]).max() < 1e-5


def test_who_holds_a_row_helps_to_tell_its_kind():
    embeddings, kind = blurred(np.random.default_rng(1))
    right = []
    for pool in (Pool(embeddings), Pool([np.concatenate(embeddings)])):
        found = kinds(pool, 2, generator(0)).chances.argmax(1)
        right.append(max((found == kind).mean(), (found != kind).mean()))
    assert right[0] > right[1] + 0.03


def test_chances_add_up_and_a_common_kind_is_a_chance():
    pool = Pool(blurred(np.random.default_rng(2))[0])
    found = kinds(pool, 5, generator(0))
    for chances in (found.chances, found.blind):
        assert chances.shape == (300, 5)
        assert chances.sum(1) == pytest.approx(1, abs=1e-5)
    seen = kindred(pool)
    assert 0.1 < seen.unlike < 0.9
    together = seen.common @ seen.common.T
    assert together.min() >= 0
    assert together.max() <= 1 + 1e-5


def test_kinds_in_a_narrow_cone_are_told_apart_as_well():
    rng = np.random.default_rng(8)
    kind = rng.integers(8, size=400)
    tight = unit(np.eye(64)[kind] + 0.05 * rng.normal(size=(400, 64)))
    cone = unit(5 * unit(rng.normal(size=(1, 64))) + tight)
    assert cone.mean(0) @ cone.mean(0) > 0.9  # as encoders trained by SimCLR leave their rows
    for rows in (tight, cone):
        seen = kindred(Pool([rows[:200], rows[200:]]))
        together, same = seen.common @ seen.common.T, kind[:, None] == kind
        assert together[same].mean() > 10 * together[~same].mean()
    assert cofal.select([cone[:200], cone[200:]], [3, 3], coordination="auto").decision.kind == "by-kind"


@pytest.mark.parametrize("rows", [1, 7])
def test_copies_of_one_row_are_of_one_kind(rows):
    copies = [np.full((rows, 4), 0.5), np.full((rows, 4), 0.5)]
    seen = kindred(Pool(copies))
    assert np.isfinite(seen.common).all()
    assert seen.common @ seen.common.T == pytest.approx(seen.blind @ seen.blind.T)
    picks = cofal.select(copies, [1, 1], coordination="auto")
    assert [len(own) for own in picks.indices] == [1, 1]


def test_holders_of_one_source_tell_nothing():
    rows = blurred(np.random.default_rng(6))[0][0]
    found = kinds(Pool([rows, rows + 1e-6]), 5, generator(0))
    assert np.array_equal(found.chances, found.blind)


def test_picks_are_those_of_the_plain_greedy():
    embeddings, _ = blurred(np.random.default_rng(3), rows=40)
    pool = Pool(embeddings, [np.array([3]), np.array([7, 8])])
    seen, kernel = kindred(pool), make_kernel("gaussian", pool.d, 1.0)
    same = pool.owner[:, None] == pool.owner
    rows = pool.tile(0, pool.n).numpy().astype(np.float64)
    values = np.exp(-np.maximum(2 - 2 * rows @ rows.T, 0))
    together, places = seen.common @ seen.common.T, seen.blind @ seen.blind.T
    weights = together + seen.unlike * same
    covered = values * np.where(same, 1, np.sqrt(np.minimum(together / (places + 1e-6), 1)))
    best, left, free = covered[pool.labeled].max(0), np.array([4, 6]), ~pool.labeled
    wanted = []
    for _ in range(10):
        gains = (weights * np.maximum(values - best, 0)).sum(1)
        row = int(np.where(free & (left > 0)[pool.owner], gains, -1).argmax())
        wanted.append(row)
        best, free[row] = np.maximum(best, covered[row]), False
        left[pool.owner[row]] -= 1
    for memory in (2**30, 1):
        picked = greedy(KindCoverage(pool, kernel, seen, memory), Quota(pool, Budgets([4, 6], pool)))
        assert picked.rows.tolist() == wanted


def test_beside_kinds_rows_of_unlike_clients_come_apart_and_those_of_one_source_do_not():
    """By how much rows lie farther apart across clients than within, as they are and beside their kinds."""
    unlike = blurred(np.random.default_rng(1))[0]
    alike = np.split(np.random.default_rng(2).permutation(np.concatenate(unlike)), 2)
    farther = {}
    for name, embeddings in (("unlike", unlike), ("alike", alike)):
        pool = Pool([*embeddings, np.empty((0, 16))])
        same = pool.owner[:, None] == pool.owner
        for how, seen in (("plain", pool), ("kinds", beside_kinds(pool))):
            rows = seen.tile(0, seen.n).numpy()
            squares = 2 - 2 * rows @ rows.T
            farther[name, how] = squares[~same].mean() / squares[same].mean() - 1
    assert farther["unlike", "kinds"] > 1.5 * farther["unlike", "plain"] > 0.1
    assert farther["alike", "kinds"] == pytest.approx(farther["alike", "plain"], abs=0.02)


@pytest.mark.parametrize("method", METHODS)
def test_budgets_are_kept_beyond_what_can_be_covered(method):
    embeddings, _ = blurred(np.random.default_rng(4), rows=30)
    picks = cofal.select([*embeddings, np.empty((0, 16))], [25, 9, 0], method, labeled=[[1], [], []], kinds=True)
    assert [len(own) for own in picks.indices] == [25, 9, 0]
    assert all(len(set(own.tolist())) == len(own) for own in picks.indices)
    assert 1 not in picks.indices[0]
    again = cofal.select([*embeddings, np.empty((0, 16))], [25, 9, 0], method, labeled=[[1], [], []], kinds=True)
    assert picks.order == again.order


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_clients_changes_no_pick(method):
    embeddings, _ = blurred(np.random.default_rng(5), rows=60)
    one = cofal.select(embeddings, [4, 6], method, kinds=True)
    other = cofal.select(embeddings[::-1], [6, 4], method, kinds=True)
    assert [sorted(own.tolist()) for own in one.indices] == [sorted(own.tolist()) for own in other.indices[::-1]]
