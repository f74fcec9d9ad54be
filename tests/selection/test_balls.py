"""Approximate ball coverage: the greedy among the drawn candidates, over all points, is the naive one."""

import numpy as np
import pytest
from oracle import unit_rows

import cofal
from cofal.rng import generator
from cofal.selection import approx, balls
from cofal.selection.balls import BallLists, ball_sizes
from cofal.selection.greedy import Quota, greedy
from cofal.selection.kernels import TopHat
from cofal.selection.pool import Budgets, Pool


def clustered(n: int, seed: int, d: int = 8) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(40, d))[rng.integers(40, size=n)] + 0.4 * rng.normal(size=(n, d))


def covered(rows: np.ndarray, picks: np.ndarray, delta: float) -> int:
    squared = ((rows[:, None] - rows[picks]) ** 2).sum(-1)
    return int((squared <= delta * delta).any(axis=1).sum())


@pytest.mark.parametrize("delta", [0.0, 0.4, 0.8, 2.0])
def test_picks_equal_a_plain_greedy_over_all_points(delta, monkeypatch):
    monkeypatch.setattr(balls, "_BLOCK", 64)
    monkeypatch.setattr(balls, "_TILE", 32)
    monkeypatch.setattr(balls, "_ROWS_AT_ONCE", 50)
    embeddings = [clustered(170, 0), clustered(130, 1)]
    pool = Pool(embeddings, [np.array([3, 90]), np.array([], dtype=int)])
    chosen = np.union1d(np.random.default_rng(2).permutation(300)[:90], [3, 90])
    x = unit_rows(embeddings)
    inside = ((x[:, None] - x[chosen]) ** 2).sum(-1) <= delta * delta  # (points, candidates)
    candidates, ball = pool.subset(chosen), TopHat(delta, 8)
    assert ball_sizes(candidates, pool, ball).tolist() == inside.sum(axis=0).tolist()
    found = greedy(BallLists(candidates, pool, ball), Quota(candidates, Budgets([12, 9], candidates)))

    left, taken, order, gains = [12, 9], candidates.labeled.copy(), [], []
    done, fresh = inside[:, taken].any(axis=1), True
    while sum(left):
        gain = {
            c: int((inside[:, c] & ~done).sum())
            for c in range(candidates.n)
            if not taken[c] and left[candidates.owner[c]] > 0
        }
        if not fresh and max(gain.values()) == 0:
            done, fresh = np.zeros(300, dtype=bool), True
            continue
        pick = min(c for c in gain if gain[c] == max(gain.values()))
        order.append(pick)
        gains.append(gain[pick])
        taken[pick], fresh = True, False
        left[candidates.owner[pick]] -= 1
        done |= inside[:, pick]
    assert found.rows.tolist() == order
    assert found.gains.tolist() == gains


def test_a_third_of_the_rows_as_candidates_lose_little():
    rows = clustered(3000, 5)
    x = unit_rows([rows])
    exact = cofal.select([rows], [60], "probcover", delta=0.3)
    close = cofal.select([rows], [60], "probcover", delta=0.3, approx=1000)
    reached = covered(x, close.indices[0], 0.3) / covered(x, exact.indices[0], 0.3)
    assert reached > 0.95
    assert close.coverage_loss == pytest.approx(max(0.0, 1 - reached), abs=1e-9)  # the check holds all 3,000 rows


def test_points_are_thinned_when_their_lists_do_not_fit(monkeypatch):
    asked = []
    build = BallLists.__init__
    monkeypatch.setattr(
        BallLists,
        "__init__",
        lambda self, candidates, points, ball: asked.append(points.n) or build(self, candidates, points, ball),
    )
    rows = clustered(2000, 6)
    cofal.select([rows], [20], "probcover", delta=1.0, approx=500)
    cofal.select([rows], [20], "probcover", delta=1.0, approx=500, memory_limit=100_000)
    assert asked[0] == 2000
    assert 0 < asked[1] < 1500


def test_clients_with_few_candidates_still_spend_their_budget():
    parts = [clustered(1500, 7), clustered(12, 8)]
    pool = Pool(parts)
    picked = approx.cover(pool, Budgets([5, 12], pool), TopHat(0.4, 8), generator(0), 2 << 30, 200, 200)
    assert np.bincount(pool.owner[picked.rows]).tolist() == [5, 12]
