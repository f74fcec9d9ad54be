"""ProbCover and MaxHerding pick, one by one, what the naive oracle picks: in every mode of the fast code."""

import numba
import numpy as np
import pytest
import torch
from oracle import naive_greedy

import cofal
from cofal.selection import approx, coverage, foresight, sweep

VALUES = {
    "gaussian": lambda squared: np.exp(-squared),
    "laplace": lambda squared: np.exp(-np.sqrt(squared)),
    "cauchy": lambda squared: 1 / (1 + squared),
    "tophat": lambda squared: (squared <= 0.64).astype(float),
    "callable": lambda squared: np.exp(-2 * squared) + 0.5 * np.exp(-squared / 4),
}
PARAMS = {
    "gaussian": {},
    "laplace": {"kernel": "laplace"},
    "cauchy": {"kernel": "cauchy"},
    "tophat": {"kernel": "tophat", "lengthscale": 0.8},
    "callable": {"kernel": lambda squared: torch.exp(-2 * squared) + 0.5 * torch.exp(-squared / 4)},
}


def _case(name: str):
    """(embeddings, budgets, labeled) of a named case."""
    rng = np.random.default_rng(7)
    if name == "random":
        return [rng.normal(size=(n, 6)) for n in (70, 50, 40)], [9, 5, 7], None
    if name == "labelled":
        return [rng.normal(size=(n, 6)) for n in (60, 50)], [8, 8], [np.array([3, 40, 7]), np.array([0, 49])]
    if name == "duplicates":
        parts = [rng.normal(size=(n, 4)) for n in (25, 15)]
        return [np.repeat(part, 3, axis=0)[rng.permutation(3 * len(part))] for part in parts], [30, 20], None
    if name == "clusters":
        centers = rng.normal(size=(5, 8)) * 3
        return [np.concatenate([c + 0.2 * rng.normal(size=(12, 8)) for c in centers]) for _ in range(2)], [12, 9], None
    if name == "ties":  # the corners of a cross-polytope, over and over: every gain is shared by many
        corners = np.concatenate([np.eye(5), -np.eye(5)])
        return [corners, corners[::-1].copy(), corners[3:]], [4, 6, 5], None
    if name == "unequal and zero budgets":
        return [rng.normal(size=(n, 5)) for n in (40, 30, 0, 50)], [0, 21, 0, 1], None
    if name == "one client":
        return [rng.normal(size=(120, 3))], [40], None
    if name == "fifty clients":
        return [rng.normal(size=(4, 6)) for _ in range(50)], [k % 4 for k in range(50)], None
    if name == "far past covered":
        return [rng.normal(size=(30, 2)), rng.normal(size=(30, 2))], [30, 25], [np.array([], dtype=int), np.array([2])]
    assert name == "every row"
    return [rng.normal(size=(17, 3)), rng.normal(size=(9, 3))], [17, 9], None


CASES = [
    "random", "labelled", "duplicates", "clusters", "ties", "unequal and zero budgets", "one client", "fifty clients",
    "far past covered", "every row",
]  # fmt: skip


@pytest.fixture(params=["plain", "small tiles, foresight", "no room for pairs"])
def mode(request, monkeypatch):
    """Parameters that drive the code through its branches: many tiles, wrong guesses, a pair list that does not fit."""
    if request.param == "plain":
        return {}
    monkeypatch.setattr(sweep, "tile_size", lambda n: 32)
    monkeypatch.setattr(coverage, "tile_size", lambda n: 32)
    monkeypatch.setattr(foresight, "_SMALL", 0)
    monkeypatch.setattr(foresight, "MOST", 5)
    return {} if request.param.startswith("small") else {"memory_limit": 2000}


@pytest.mark.parametrize("kernel", VALUES)
@pytest.mark.parametrize("case", CASES)
def test_picks_equal_the_oracle(case, kernel, mode):
    embeddings, budgets, labeled = _case(case)
    picks = cofal.select(embeddings, budgets, "maxherding", labeled=labeled, **PARAMS[kernel], **mode)
    order, gains = naive_greedy(embeddings, budgets, VALUES[kernel], labeled)
    assert picks.order == order
    np.testing.assert_allclose(picks.gains, gains, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("delta", [1e-4, 0.3, 1.0, float(np.sqrt(2)), 2.0])
def test_probcover_equals_the_oracle_and_the_top_hat(case, delta):
    embeddings, budgets, labeled = _case(case)
    picks = cofal.select(embeddings, budgets, "probcover", labeled=labeled, delta=delta)
    order, gains = naive_greedy(embeddings, budgets, lambda squared: (squared <= delta * delta).astype(float), labeled)
    assert picks.order == order
    assert picks.gains.tolist() == gains
    top_hat = cofal.select(embeddings, budgets, kernel="tophat", lengthscale=delta, labeled=labeled)
    assert top_hat.order == order


def test_pairs_at_the_very_edge_of_a_ball_are_decided_as_in_float64(mode):
    """Thousands of pairs at distances within float32 rounding of delta: a matrix product alone would get some wrong."""
    rng = np.random.default_rng(3)
    center = rng.normal(size=64)
    center /= np.linalg.norm(center)
    aside = rng.normal(size=(150, 64))
    aside -= np.outer(aside @ center, center)
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    cosine = 1 - 0.81 / 2
    ring = cosine * center + np.sqrt(1 - cosine**2) * aside  # all at distance 0.9 of the centre, up to rounding
    embeddings = [np.concatenate([[center], ring]).astype(np.float32)]
    picks = cofal.select(embeddings, [20], "probcover", delta=0.9, **mode)
    order, _ = naive_greedy(embeddings, [20], lambda squared: (squared <= 0.9 * 0.9).astype(float))
    assert picks.order == order


def test_per_client_is_each_client_alone():
    embeddings, budgets, labeled = _case("labelled")
    picks = cofal.select(embeddings, budgets, coordination="per-client", labeled=labeled)
    for client, (rows, budget) in enumerate(zip(embeddings, budgets)):
        order, _ = naive_greedy([rows], [budget], VALUES["gaussian"], [labeled[client]])
        assert picks.indices[client].tolist() == [position for _, position in order]
    assert [client for client, _ in picks.order] == [0, 1] * 8


def test_picks_do_not_depend_on_threads_or_memory(monkeypatch):
    rng = np.random.default_rng(5)
    embeddings = [rng.normal(size=(800, 16)).astype(np.float16), rng.normal(size=(500, 16))]
    wanted = cofal.select(embeddings, [12, 8])  # one thread, see conftest.py
    monkeypatch.setattr(foresight, "_SMALL", 0)
    assert cofal.select(embeddings, [12, 8], memory_limit=100_000).order == wanted.order
    monkeypatch.setattr(approx, "_SERIAL", 0)
    torch.set_num_threads(2)
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    assert cofal.select(embeddings, [12, 8], memory_limit=3_000_000).order == wanted.order
