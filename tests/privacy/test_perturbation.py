"""The paper's embedding perturbation: displacement, unit length, isotropy in the tangent space."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.errors import UserError
from cofal.privacy.perturbation import noise_scale, perturb
from cofal.rng import generator


def unit(n, d, seed=0):
    x = generator(seed, "test").standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("d", [64, 256, 2048])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.6, 1.0, 1.3])
def test_mean_displacement_is_epsilon_to_one_percent(d, epsilon):
    x = unit(4000, d)
    moved = perturb(x, epsilon, generator(1, "noise"))
    distance = np.linalg.norm(moved.astype(np.float64) - x, axis=1)
    assert abs(distance.mean() - epsilon) < 0.01 * epsilon


@given(st.floats(0.01, 1.4), st.integers(2, 80))
@settings(max_examples=30, deadline=None)
def test_rows_stay_on_the_sphere(epsilon, d):
    moved = perturb(unit(50, d), epsilon, generator(2, "noise"))
    assert np.allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-6)


def test_epsilon_zero_changes_nothing():
    x = unit(10, 16)
    assert np.array_equal(perturb(x, 0.0, generator(0, "noise")), x)


@pytest.mark.parametrize("epsilon", [-0.1, 2**0.5, 2.0, float("nan")])
def test_epsilon_outside_its_range_is_refused(epsilon):
    with pytest.raises(UserError, match="epsilon"):
        noise_scale(epsilon)


def test_the_noise_is_isotropic_in_the_tangent_space():
    d, n = 16, 60000
    x = np.repeat(unit(1, d), n, axis=0)
    moved = perturb(x, 0.5, generator(3, "noise")).astype(np.float64)
    along = moved @ x[0].astype(np.float64)
    tangent = moved / along[:, None] - x  # the noise before normalisation, exactly
    spectrum = np.linalg.eigvalsh(np.cov(tangent.T))
    expected = noise_scale(0.5) ** 2 / (d - 1)
    assert spectrum[0] == pytest.approx(0, abs=1e-9)  # nothing along x
    assert spectrum[1:] == pytest.approx(np.full(d - 1, expected), rel=0.05)


def test_the_same_stream_gives_the_same_noise_whatever_the_size_of_a_tile():
    x = unit(20000, 4)
    whole = perturb(x, 0.4, generator(4, "noise"))
    assert np.array_equal(whole[:100], perturb(x[:100], 0.4, generator(4, "noise")))
