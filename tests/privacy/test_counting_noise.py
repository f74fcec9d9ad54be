"""The samplers have exactly the distributions that the accountant counts; noise is repeatable only when asked to be."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from cofal.errors import UserError
from cofal.privacy.counting_noise import _Dice, discrete_gaussian, discrete_laplace, noisy

DRAWS = 15_000


def agrees(draws: np.ndarray, mass: np.ndarray, support: np.ndarray) -> bool:
    """Chi-square of the draws against `mass` on `support`, cells with fewer than 10 expected put together."""
    mass = mass / mass.sum()
    expected = mass * len(draws)
    seen = np.array([(draws == value).sum() for value in support])
    assert seen.sum() == len(draws)
    rare = expected < 10
    if rare.any():
        seen, expected = np.append(seen[~rare], seen[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    return bool(chisquare(seen, expected).pvalue > 1e-3)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.7])
def test_discrete_laplace_has_its_distribution(scale):
    draws = discrete_laplace(scale, DRAWS, np.random.default_rng(1).bytes)
    support = np.arange(-200, 201)
    assert agrees(draws, np.exp(-np.abs(support) / scale), support)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.5, 6.0])
def test_discrete_gaussian_has_its_distribution(sigma):
    draws = discrete_gaussian(sigma, DRAWS, np.random.default_rng(2).bytes)
    support = np.arange(-200, 201)
    assert agrees(draws, np.exp(-(support**2) / (2 * sigma**2)), support)


def test_the_test_can_tell_a_rounded_normal_from_a_discrete_gaussian():
    rounded = np.rint(np.random.default_rng(3).normal(0, 1.0, DRAWS)).astype(np.int64)
    support = np.arange(-200, 201)
    assert not agrees(rounded, np.exp(-(support**2) / 2), support)


@pytest.mark.parametrize(("top", "bottom"), [(0, 1), (1, 3), (1, 1), (7, 4), (10**30 + 1, 10**30)])
def test_coins_of_probability_exp_minus(top, bottom):
    dice = _Dice(np.random.default_rng(4).bytes)
    heads = np.mean([dice.exp_minus(top, bottom) for _ in range(DRAWS)])
    chance = np.exp(-float(Fraction(top, bottom)))
    assert abs(heads - chance) <= 4 * np.sqrt(chance * (1 - chance) / DRAWS)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2**70), st.integers(0, 2**32))
def test_integers_stay_below_their_bound(bound, seed):
    dice = _Dice(np.random.default_rng(seed).bytes)
    assert all(0 <= dice.below(bound) < bound for _ in range(20))


def test_integers_are_uniform():
    dice = _Dice(np.random.default_rng(5).bytes)
    assert chisquare(np.bincount([dice.below(300) for _ in range(DRAWS)], minlength=300)).pvalue > 1e-3


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_counts_get_independent_noise(mechanism):
    counts = np.arange(600, dtype=np.int32).reshape(20, 30)
    first = noisy(counts, mechanism, 3.0, np.random.default_rng(6).bytes)
    assert first.dtype == np.int32
    assert first.shape == counts.shape
    assert np.array_equal(first, noisy(counts, mechanism, 3.0, np.random.default_rng(6).bytes))
    noise = (first - counts).ravel()
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.2
    assert len(np.unique(noise)) > 5
    # By default from the operating system: never the same twice.
    assert not np.array_equal(noisy(counts, mechanism, 3.0), noisy(counts, mechanism, 3.0))


def test_noise_at_the_limits_stays_in_four_bytes():
    ends = np.array([2**31 - 1, -(2**31)] * 50, dtype=np.int32)
    moved = noisy(ends, "laplace", 100.0, np.random.default_rng(7).bytes)
    assert (np.abs(moved.astype(np.int64) - ends) < 10_000).all()


@pytest.mark.parametrize("parameter", [0, -1.0, float("nan"), float("inf"), 1e9])
def test_parameters_without_meaning_are_refused(parameter):
    for sample in (discrete_laplace, discrete_gaussian):
        with pytest.raises(UserError, match="must be above 0 and at most"):
            sample(parameter, 1)
    with pytest.raises(UserError, match="unknown noise 'cauchy'; known: laplace, gaussian"):
        noisy(np.zeros(1, dtype=np.int32), "cauchy", 1.0)
