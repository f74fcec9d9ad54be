"""The embedding perturbation: displacement, unit length, isotropy in the tangent space, where its noise comes from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cofal
from cofal.errors import UserError
from cofal.privacy.perturbation import kept_cosine, noise_scale, noise_stream, perturb, privacy_loss
from cofal.rng import generator
from cofal.selection.maxherding import noised_lengthscale
from cofal.selection.probcover import noised_radius


def unit(n, d, seed=0):
    x = generator(seed, "test").standard_normal((n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("mechanism", ["tangent", "vmf"])
@pytest.mark.parametrize("d", [64, 128, 256, 512, 1024, 2048])
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.6, 1.0, 1.3])
def test_mean_displacement_is_epsilon_to_one_percent(d, epsilon, mechanism):
    x = unit(300, d)
    moved = perturb(x, epsilon, generator(1, "noise"), mechanism)
    distance = np.linalg.norm(moved.astype(np.float64) - x, axis=1)
    assert abs(distance.mean() - epsilon) < 0.01 * epsilon


@given(st.floats(0.01, 1.2), st.integers(2, 80), st.sampled_from(["tangent", "vmf"]))
@settings(max_examples=40, deadline=None)
def test_rows_stay_on_the_sphere(epsilon, d, mechanism):
    moved = perturb(unit(50, d), epsilon, generator(2, "noise"), mechanism)
    assert moved.dtype == np.float32
    assert np.allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("mechanism", ["tangent", "vmf"])
def test_epsilon_zero_changes_nothing(mechanism):
    x = unit(10, 16)
    assert np.array_equal(perturb(x, 0.0, generator(0, "noise"), mechanism), x)


@pytest.mark.parametrize("epsilon", [-0.1, 2**0.5, 2.0, float("nan"), "a", "0.6", None, True, False, [0.6]])
def test_epsilon_outside_its_range_is_refused(epsilon):
    with pytest.raises(UserError, match="epsilon"):
        noise_scale(epsilon)
    for mechanism in ("tangent", "vmf"):
        with pytest.raises(UserError, match="epsilon"):
            perturb(unit(3, 8), epsilon, generator(0, "noise"), mechanism)
    for coordination in ("central", "per-client"):
        with pytest.raises(UserError, match=r"^epsilon = .* must be a number of at least 0"):
            cofal.select([unit(3, 8)], [1], coordination=coordination, epsilon=epsilon)


def test_an_unknown_mechanism_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'vmf'"):
        perturb(unit(3, 8), 0.1, generator(0, "noise"), "vfm")


def test_one_dimension_has_no_direction_to_move_in():
    with pytest.raises(UserError, match="dimension 1"):
        perturb(np.ones((3, 1), dtype=np.float32), 0.1, generator(0, "noise"))


def rows_with(value):
    x = unit(9000, 8)
    x[8500, 3] = value
    return x


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
@pytest.mark.parametrize("mechanism", ["tangent", "vmf"])
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (rows_with(np.nan), "row 8500 of the embeddings holds NaN or infinity"),
        (rows_with(np.inf), "row 8500 of the embeddings holds NaN or infinity"),
        (1.01 * unit(3, 8), "row 0 of the embeddings has length 1.01, not 1"),
        (np.zeros((3, 8)), "length 0, not 1"),
        (unit(1, 8)[0], r"shape \(8,\)"),
        (unit(4, 8).reshape(2, 2, 8), r"shape \(2, 2, 8\)"),
    ],
)
def test_what_are_not_unit_rows_is_refused(rows, words, mechanism, epsilon):
    with pytest.raises(UserError, match=words) as error:
        perturb(rows, epsilon, generator(0, "noise"), mechanism)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("d", [2, 64, 2048])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_unit_rows_of_any_precision_are_taken(kind, d):
    moved = perturb(unit(500, d).astype(kind), 0.3, generator(0, "noise"))
    assert np.isfinite(moved).all()
    assert perturb(unit(0, d), 0.3, generator(0, "noise")).shape == (0, d)


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


@pytest.mark.parametrize("mechanism", ["tangent", "vmf"])
@pytest.mark.parametrize("epsilon", [0.3, 0.6, 1.0])
def test_two_noised_rows_keep_the_square_of_the_cosine_kept(epsilon, mechanism):
    d, n = 128, 20000
    pair = unit(2, d).astype(np.float64)
    pair[1] = 0.6 * pair[0] + 0.8 * (pair[1] - pair[1] @ pair[0] * pair[0]) / np.sqrt(1 - (pair[1] @ pair[0]) ** 2)
    a, b = (
        perturb(np.repeat(row[None], n, 0), epsilon, generator(5, "noise", k), mechanism) for k, row in enumerate(pair)
    )
    kept = kept_cosine(epsilon, d, mechanism)
    assert (a @ pair[0]).mean() == pytest.approx(kept, abs=0.004)
    assert np.sum(a * b, axis=1).mean() == pytest.approx(kept**2 * 0.6, abs=0.004)


def test_without_a_seed_the_noise_comes_from_the_operating_system_and_never_repeats():
    x = unit(4, 16)
    first, second = (perturb(x, 0.5, noise_stream(None, "site")) for _ in range(2))
    assert not np.array_equal(first, second)


def test_a_seed_makes_the_noise_repeatable_and_apart_for_each_name():
    draws = [noise_stream(7, "perturb", name).standard_normal(4) for name in ("a", "a", "b")]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_only_the_mechanism_with_a_proof_states_a_finite_loss():
    assert privacy_loss(0.6, 256, "tangent") == np.inf
    assert privacy_loss(0.0, 256, "vmf") == np.inf
    assert 600 < privacy_loss(0.6, 256, "vmf") < 700  # per unit of distance: a bound, not a small one
    assert privacy_loss(1.0, 256, "vmf") < privacy_loss(0.6, 256, "vmf")


def test_a_selection_takes_either_noise_and_knows_rows_that_carry_it():
    rows = [unit(60, 32, seed) for seed in (1, 2)]
    given = {"method": "probcover", "delta": 1.2, "seed": 3, "epsilon": 0.6}
    for mechanism in ("tangent", "vmf"):
        here = cofal.select(rows, [4, 4], mechanism=mechanism, **given)
        sent = [perturb(x, 0.6, generator(3, "perturb", k), mechanism) for k, x in enumerate(rows)]
        there = cofal.select(sent, [4, 4], mechanism=mechanism, already_noised=True, **given)
        assert here.order == there.order
    with pytest.raises(UserError, match="mechanism"):
        cofal.select(rows, [1, 1], mechanism="gauss")


def test_the_corrected_radius_covers_under_noise_what_the_given_one_covers_without():
    """Tight groups: at the given radius a noised ball holds its centre alone, at the corrected one about its group."""
    groups = np.repeat(unit(6, 256), 40, axis=0) + 0.02 * generator(1, "groups").standard_normal((240, 256))
    rows = [(groups / np.linalg.norm(groups, axis=1, keepdims=True)).astype(np.float32)]
    given = {"method": "probcover", "delta": 0.6, "seed": 0}
    clean = cofal.select(rows, [6], **given).gains
    noised = cofal.select(rows, [6], epsilon=0.6, **given).gains
    left = cofal.select(rows, [6], epsilon=0.6, correct_radius=False, **given).gains
    assert list(clean) == [40] * 6
    assert noised.sum() > 200
    assert left.sum() < 20


def test_the_corrected_lengthscale_tells_noised_rows_apart_as_the_given_one_tells_clean_ones():
    """How far apart the kernel holds a near and a far pair of rows, in the mean over many noised copies."""
    d, pairs, kept = 2048, 400, kept_cosine(0.6, 2048, "tangent")
    near, far = np.zeros((2, d)), np.zeros((2, d))
    near[:, 0], near[1, 1], far[:, 0], far[1, 1] = 1, 0.5, 1, 2.0
    ratios = []
    for scale, noise in ((1.0, 0.0), (noised_lengthscale(1.0, kept), 0.6), (1.0, 0.6)):
        means = []
        for place, rows in enumerate((near, far)):
            rows = np.repeat(rows / np.linalg.norm(rows, axis=1, keepdims=True), pairs, axis=0)
            moved = perturb(rows, noise, generator(place, "pairs"))
            apart = ((moved[:pairs] - moved[pairs:]) ** 2).sum(1)
            means.append(np.log(np.exp(-apart / scale**2).mean()))
        ratios.append(means[0] - means[1])
    clean, corrected, left = ratios
    assert corrected == pytest.approx(clean, rel=0.03)
    assert left < 0.75 * clean


def test_maxherding_knows_of_the_noise_unless_told_otherwise():
    rows = [unit(80, 64, seed) for seed in (1, 2)]
    sent = [perturb(x, 0.6, generator(3, "perturb", k)) for k, x in enumerate(rows)]
    given = {"method": "maxherding", "seed": 3}
    kept = kept_cosine(0.6, 64, "tangent")
    asked = {"epsilon": 0.6, "already_noised": True}
    for options, plain in (
        ({"lengthscale": 0.5}, {"lengthscale": 0.5 * kept}),
        ({"lengthscale": 0.5, "correct_lengthscale": False}, {"lengthscale": 0.5}),
        ({"lengthscale": 0.8, "kernel": "tophat"}, {"lengthscale": noised_radius(0.8, kept), "kernel": "tophat"}),
        ({"lengthscale": 0.5, "kernel": "laplace"}, {"lengthscale": 0.5, "kernel": "laplace"}),
    ):
        knowing = cofal.select(sent, [5, 5], **given, **asked, **options)
        assert knowing.gains == pytest.approx(cofal.select(sent, [5, 5], **given, **plain).gains)
