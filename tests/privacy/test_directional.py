"""Von Mises-Fisher noise: exact in law, sound at every dimension and concentration, and as private as it says."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive
from scipy.stats import kstest

from cofal.errors import UserError
from cofal.privacy.directional import (
    LARGEST,
    concentration,
    mean_cosine,
    mean_displacement,
    sample_gaps,
    von_mises_fisher,
)
from cofal.rng import generator


def unit(n, d, seed=0):
    x = generator(seed, "test").standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def angles(kappa, d, points=200_001):
    """A fine grid of angles and the law's distribution function on it, by plain summation."""
    t = np.linspace(0, np.pi, points)[1:-1]
    log_density = kappa * (np.cos(t) - 1) + (d - 2) * np.log(np.sin(t))
    mass = np.cumsum(np.exp(log_density - log_density.max()))
    return t, mass / mass[-1]


@pytest.mark.parametrize("d", [2, 3, 10, 256, 2048])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 20.0, 1e3])
def test_the_cosine_follows_its_law(d, kappa):
    drawn = np.arccos(np.clip(1 - sample_gaps(20_000, d, kappa, generator(1, "vmf", d, kappa)), -1, 1))
    t, cdf = angles(kappa, d)
    assert kstest(drawn, lambda x: np.interp(x, t, cdf)).pvalue > 1e-3


@pytest.mark.parametrize("d", [2, 3, 64, 512, 2048])
@pytest.mark.parametrize("kappa", [0.0, 1e-3, 1.0, 1e2, 1e4, 1e5])
def test_the_mean_of_the_draws_is_the_bessel_ratio(d, kappa):
    gap = sample_gaps(20_000, d, kappa, generator(2, "vmf", d, kappa))
    assert ((gap >= 0) & (gap <= 2)).all()
    error = gap.std() / math.sqrt(len(gap))
    assert gap.mean() == pytest.approx(1 - mean_cosine(kappa, d), abs=4 * error)


@given(st.integers(2, 400), st.floats(-2, 5))
@settings(max_examples=200, deadline=None)
def test_the_bessel_ratio_agrees_with_bessel_functions_where_those_can_be_computed(d, log_kappa):
    kappa = 10**log_kappa
    below, above = ive(d / 2 - 1, kappa), ive(d / 2, kappa)
    if above > 1e-250:
        assert mean_cosine(kappa, d) == pytest.approx(above / below, rel=1e-8)


@given(st.floats(1e-6, 1e8), st.integers(2, 4096))
@settings(max_examples=100, deadline=None)
def test_the_bessel_ratio_lies_between_the_known_bounds(kappa, d):
    v = d / 2 - 1
    low = kappa / (v + 0.5 + math.hypot(v + 1.5, kappa))
    high = kappa / (v + 0.5 + math.hypot(v + 0.5, kappa))
    assert low * (1 - 1e-9) <= mean_cosine(kappa, d) <= high * (1 + 1e-9)


def test_in_three_dimensions_all_is_elementary():
    for kappa in (0.1, 1.0, 30.0, 1e4):
        assert mean_cosine(kappa, 3) == pytest.approx(1 / math.tanh(kappa) - 1 / kappa, rel=1e-9)
    assert mean_displacement(0.0, 3) == pytest.approx(4 / 3, rel=1e-6)
    assert mean_displacement(0.0, 2) == pytest.approx(4 / math.pi, rel=1e-6)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kappa", [0.3, 5.0, 200.0])
def test_the_density_of_the_draws_agrees_with_numerical_integration(d, kappa):
    x = np.repeat(unit(1, d), 100_000, axis=0)
    y = von_mises_fisher(x, kappa, generator(3, "vmf"))
    t, cdf = angles(kappa, d)
    density = np.diff(cdf, prepend=0)
    assert np.linalg.norm(y - x, axis=1).mean() == pytest.approx((2 * np.sin(t / 2) * density).sum(), rel=0.01)
    assert (y @ x[0]).mean() == pytest.approx((np.cos(t) * density).sum(), abs=0.005)


def test_the_directions_across_the_row_are_uniform():
    d = 12
    x = np.repeat(unit(1, d), 40_000, axis=0)
    y = von_mises_fisher(x, 30.0, generator(4, "vmf")).astype(np.float64)
    across = y - (y @ x[0])[:, None] * x
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    assert np.abs(across.mean(0)).max() < 0.01
    spectrum = np.linalg.eigvalsh(across.T @ across / len(across))
    assert spectrum[1:] == pytest.approx(np.full(d - 1, 1 / (d - 1)), rel=0.05)


def test_the_likelihood_ratio_of_two_rows_stays_within_the_guarantee():
    """Counted on the circle: log of the ratio of frequencies in each arc, for two rows a known distance apart."""
    kappa, n, arcs = 2.0, 400_000, 24
    a, b = np.array([1.0, 0.0]), np.array([math.cos(0.7), math.sin(0.7)])
    counts = []
    for number, row in enumerate((a, b)):
        y = von_mises_fisher(np.repeat(row[None], n, 0), kappa, generator(5, "vmf", number))
        counts.append(np.histogram(np.arctan2(y[:, 1], y[:, 0]), bins=arcs, range=(-np.pi, np.pi))[0])
    ratio = np.abs(np.log(counts[0] / counts[1]))
    bound = kappa * np.linalg.norm(a - b)
    assert ratio.max() <= bound + 0.05  # sampling error
    assert ratio.max() > 0.9 * bound  # and the bound is the best possible one


@given(st.floats(0.01, 1.2), st.integers(2, 2048))
@settings(max_examples=40, deadline=None)
def test_concentration_undoes_mean_displacement(displacement, d):
    assert mean_displacement(concentration(displacement, d), d) == pytest.approx(displacement, rel=1e-8)


@pytest.mark.parametrize("d", [2, 64, 2048])
def test_more_concentration_means_less_displacement(d):
    moved = [mean_displacement(kappa, d) for kappa in (0, 1e-2, 1, 10, 1e3, 1e5, 1e9, LARGEST)]
    assert moved == sorted(moved, reverse=True)
    assert concentration(0.0, d) == math.inf


@pytest.mark.parametrize("kappa", [-1.0, math.nan, math.inf])
def test_a_concentration_that_is_no_number_is_refused(kappa):
    with pytest.raises(UserError, match="kappa"):
        von_mises_fisher(unit(2, 4), kappa, generator(0, "vmf"))


def test_a_displacement_beyond_the_uniform_law_s_is_refused():
    with pytest.raises(UserError, match=r"1\.273"):
        concentration(1.3, 2)
    with pytest.raises(UserError, match="too small"):
        concentration(1e-9, 64)
