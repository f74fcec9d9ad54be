import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.errors import UserError
from cofal.learning.batches import batch_sizes, shuffled_batches
from cofal.learning.simclr import build_simclr, cosine_lr, nt_xent, train_simclr
from cofal.learning.state import state_to_arrays
from cofal.learning.views import make_views
from cofal.rng import generator, torch_generator

RECIPE = {
    "epochs": 1,
    "batch_size": 8,
    "lr": 1e-3,
    "optimizer": "adamw",
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "temperature": 0.3,
    "views": make_views("glyph", 8, 1),
}


def pictures(n, seed=0):
    return generator(seed, "pictures").integers(0, 256, (n, 8, 8, 1), dtype=np.uint8)


def same(a, b):
    return all(np.array_equal(a[key], b[key]) for key in a)


def naive_nt_xent(z1, z2, temperature):
    """For each projection: minus the log of its partner's share among all others, one exponential at a time."""
    z = [row / row.norm() for row in torch.cat([z1, z2])]
    n = len(z1)
    losses = []
    for i in range(2 * n):
        weights = [math.exp(float(z[i] @ z[j]) / temperature) if j != i else 0.0 for j in range(2 * n)]
        losses.append(-math.log(weights[(i + n) % (2 * n)] / sum(weights)))
    return sum(losses) / len(losses)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 6), st.floats(0.1, 2.0), st.integers(0, 9999))
def test_nt_xent_equals_the_double_loop(n, d, temperature, seed):
    z = torch.randn(2, n, d, generator=torch_generator(seed), dtype=torch.float64)
    assert nt_xent(z[0], z[1], temperature).item() == pytest.approx(naive_nt_xent(z[0], z[1], temperature), rel=1e-6)


def test_nt_xent_prefers_partners_that_agree_and_has_the_right_gradient():
    z = torch.randn(6, 4, generator=torch_generator(0), dtype=torch.float64)
    other = torch.randn(6, 4, generator=torch_generator(1), dtype=torch.float64)
    assert nt_xent(z, z, 0.2) < nt_xent(z, other, 0.2)
    z.requires_grad_(), other.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: nt_xent(a, b, 0.5), (z, other))


@given(st.integers(0, 2000), st.integers(1, 300), st.integers(1, 2))
def test_batches_are_even_and_lose_nothing(n, batch_size, smallest):
    sizes = batch_sizes(n, batch_size, smallest)
    assert sum(sizes) == n
    if n:
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(smallest, n)
        assert max(sizes) <= max(batch_size, 3)


@given(st.integers(2, 60), st.integers(2, 20), st.integers(0, 99))
def test_an_epoch_visits_every_sample_once(n, batch_size, seed):
    seen = np.concatenate(list(shuffled_batches(n, batch_size, 2, torch_generator(seed))))
    assert sorted(seen) == list(range(n))


def test_training_is_the_bare_loop_and_nothing_else():
    """The same steps written out, as a reader would, give the same bits."""
    images = pictures(20)
    model, bare = build_simclr("resnet-tiny", 1, torch_generator(1)), build_simclr("resnet-tiny", 1, torch_generator(1))
    recipe = {**RECIPE, "batch_size": 10, "optimizer": "sgd", "weight_decay": 0.0, "epochs": 2}
    loss = train_simclr(model, images, generator=torch_generator(2), **recipe)

    rng, losses = torch_generator(2), []
    optimizer = torch.optim.SGD(bare.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    for _ in range(2):
        order = torch.randperm(20, generator=rng)
        for part in order.split(10):
            pixels = torch.from_numpy(images[part.sort().values.numpy()]).permute(0, 3, 1, 2)
            first, second = recipe["views"](pixels, rng)
            z = F.normalize(bare(torch.cat([first, second])))
            logits = (z @ z.T / 0.3).masked_fill(torch.eye(20, dtype=torch.bool), -torch.inf)
            step_loss = F.cross_entropy(logits, (torch.arange(20) + 10) % 20)
            optimizer.zero_grad()
            step_loss.backward()
            optimizer.step()
            losses.append(step_loss.item())
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    trained, expected = state_to_arrays(model), state_to_arrays(bare)
    for key in trained:
        np.testing.assert_allclose(trained[key], expected[key], rtol=1e-4, atol=1e-5, err_msg=key)


def test_same_seed_same_bits_and_the_global_generator_is_untouched():
    before = torch.get_rng_state()
    states = []
    for seed in (3, 3, 4):
        model = build_simclr("resnet-tiny", 1, torch_generator(0))
        train_simclr(model, pictures(30), generator=torch_generator(seed), **RECIPE)
        states.append(state_to_arrays(model))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


def test_training_runs_under_deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        model = build_simclr("resnet-tiny", 1, torch_generator(0))
        assert train_simclr(model, pictures(9), generator=torch_generator(0), **RECIPE) > 0
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("n", [0, 1])
def test_a_client_with_nothing_to_contrast_leaves_the_model_alone(n):
    model = build_simclr("resnet-tiny", 1, torch_generator(0))
    before = state_to_arrays(model)
    assert train_simclr(model, pictures(n), generator=torch_generator(0), **RECIPE) == 0.0
    assert same(before, state_to_arrays(model))


@pytest.mark.parametrize("n", [2, 3, 7, 9, 17])
def test_any_number_of_images_trains_including_one_over_a_batch(n):
    model = build_simclr("resnet-tiny", 1, torch_generator(0))
    before = state_to_arrays(model)
    assert train_simclr(model, pictures(n), generator=torch_generator(0), **RECIPE) > 0
    after = state_to_arrays(model)
    assert not same(before, after)
    assert all(np.isfinite(value).all() for value in after.values())


def test_a_read_only_memmap_is_read_batch_by_batch(tmp_path):
    np.save(tmp_path / "images.npy", pictures(20))

    class Watched:
        """An image array that counts the rows taken from it at a time."""

        def __init__(self):
            self.images, self.largest = np.load(tmp_path / "images.npy", mmap_mode="r"), 0

        def __len__(self):
            return len(self.images)

        def __getitem__(self, key):
            rows = self.images[key]
            self.largest = max(self.largest, len(rows))
            return rows

    watched = Watched()
    model, plain = (
        build_simclr("resnet-tiny", 1, torch_generator(0)),
        build_simclr("resnet-tiny", 1, torch_generator(0)),
    )
    train_simclr(model, watched, generator=torch_generator(0), **RECIPE)
    train_simclr(plain, pictures(20), generator=torch_generator(0), **RECIPE)
    assert 0 < watched.largest <= 8
    assert same(state_to_arrays(model), state_to_arrays(plain))


def test_the_proximal_term_holds_the_weights_back():
    def drift(mu):
        model = build_simclr("resnet-tiny", 1, torch_generator(0))
        start = torch.cat([p.detach().flatten() for p in model.parameters()])
        recipe = {**RECIPE, "optimizer": "sgd", "lr": 0.05, "momentum": 0.0, "epochs": 3}
        train_simclr(model, pictures(24), generator=torch_generator(0), proximal_mu=mu, **recipe)
        return (torch.cat([p.detach().flatten() for p in model.parameters()]) - start).norm().item()

    assert drift(5.0) < 0.7 * drift(0.0)


def test_progress_counts_every_batch():
    calls = []
    model = build_simclr("resnet-tiny", 1, torch_generator(0))
    train_simclr(model, pictures(20), generator=torch_generator(0), on_batch=lambda *a: calls.append(a), **RECIPE)
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_divergence_is_told_not_averaged():
    model = build_simclr("resnet-tiny", 1, torch_generator(0))
    with torch.no_grad():
        model.projection[-1].weight.fill_(float("nan"))
    with pytest.raises(UserError, match=r"diverged.*0\.001"):
        train_simclr(model, pictures(4), generator=torch_generator(0), **RECIPE)


def test_unknown_optimizer_is_named():
    model = build_simclr("resnet-tiny", 1, torch_generator(0))
    with pytest.raises(UserError, match="adamm"):
        train_simclr(model, pictures(4), generator=torch_generator(0), **{**RECIPE, "optimizer": "adamm"})


def test_cosine_schedule():
    rates = [cosine_lr(1.0, r, 20, warmup=4) for r in range(20)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4] == 1.0
    assert all(a > b for a, b in itertools.pairwise(rates[4:]))
    assert 0 < rates[-1] < 0.02
    assert cosine_lr(0.5, 0, 1) == 0.5
