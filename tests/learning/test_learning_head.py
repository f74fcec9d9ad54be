import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.errors import UserError
from cofal.learning.head import _views, build_head, loss_and_gradient, predict_proba, train_head
from cofal.learning.state import state_to_arrays
from cofal.rng import generator, torch_generator

RECIPE = {"epochs": 3, "batch_size": 64, "lr": 1e-2, "weight_decay": 1e-3, "optimizer": "adamw"}


def clusters(m, d=16, classes=4, seed=0):
    """Unit rows around one direction a class, and their labels."""
    rng = generator(seed, "clusters")
    y = np.arange(m) % classes
    x = rng.normal(size=(classes, d))[y] + 0.5 * rng.normal(size=(m, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), y.astype(np.int64)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 7), st.integers(2, 5), st.integers(0, 9999))
def test_the_written_out_gradient_is_autograds(b, d, hidden, classes, seed):
    rng = torch_generator(seed)
    head = build_head(d, hidden, classes, rng).double()
    x, y = torch.randn(b, d, generator=rng).double(), torch.randint(0, classes, (b,), generator=rng)
    loss = F.cross_entropy(head(x), y)
    loss.backward()
    flat = torch.cat([p.detach().view(-1) for p in head.parameters()])
    slope = torch.empty_like(flat)
    mine = loss_and_gradient(_views(flat, head.sizes), _views(slope, head.sizes), x, y)
    torch.testing.assert_close(mine, loss.detach())
    torch.testing.assert_close(slope, torch.cat([p.grad.view(-1) for p in head.parameters()]))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_training_equals_torch_optimisers(optimizer, mu):
    x, y = clusters(24)
    head, reference = (build_head(16, 32, 4, torch_generator(0)) for _ in range(2))
    recipe = {**RECIPE, "optimizer": optimizer, "epochs": 5}
    train_head(head, x, y, generator=torch_generator(1), proximal_mu=mu, **recipe)
    if optimizer == "sgd":
        stepper = torch.optim.SGD(reference.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-3)
    else:
        stepper = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=1e-3)
    received = [p.detach().clone() for p in reference.parameters()]
    for _ in range(5):
        stepper.zero_grad()
        pull = sum(((p - r) ** 2).sum() for p, r in zip(reference.parameters(), received))
        (F.cross_entropy(reference(torch.from_numpy(x)), torch.from_numpy(y)) + mu / 2 * pull).backward()
        stepper.step()
    for (name, p), q in zip(head.named_parameters(), reference.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_it_learns_and_predicts_probabilities():
    x, y = clusters(200)
    head = build_head(16, 256, 4, torch_generator(0))
    train_head(head, x[:40], y[:40], generator=torch_generator(1), **{**RECIPE, "epochs": 60, "batch_size": 16})
    p = predict_proba(head, x)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-5)
    assert (p[40:].argmax(axis=1) == y[40:]).mean() > 0.9


def test_same_seed_same_bits_and_the_global_generator_is_untouched():
    x, y = clusters(50)
    before, states = torch.get_rng_state(), []
    for seed in (1, 1, 2):
        head = build_head(16, 8, 4, torch_generator(0))
        train_head(head, x, y, generator=torch_generator(seed), **{**RECIPE, "batch_size": 16})
        states.append(np.concatenate([a.ravel() for a in state_to_arrays(head).values()]))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(states[0], states[1])
    assert not np.array_equal(states[0], states[2])


def test_a_client_without_labels_leaves_the_head_alone_and_one_label_is_enough():
    x, y = clusters(1)
    head = build_head(16, 8, 4, torch_generator(0))
    before = state_to_arrays(head)
    assert train_head(head, x[:0], y[:0], generator=torch_generator(1), **RECIPE) == 0.0
    assert all(np.array_equal(before[key], value) for key, value in state_to_arrays(head).items())
    assert train_head(head, x, y, generator=torch_generator(1), **RECIPE) > 0


def test_unknown_optimizer_and_divergence_are_told():
    x, y = clusters(8)
    head = build_head(16, 8, 4, torch_generator(0))
    with pytest.raises(UserError, match="adam"):
        train_head(head, x, y, generator=torch_generator(1), **{**RECIPE, "optimizer": "adam"})
    with pytest.raises(UserError, match="diverged"):
        train_head(head, x * np.float32("nan"), y, generator=torch_generator(1), **RECIPE)


def test_a_call_is_cheaper_than_autograd_and_its_optimiser():
    """The inner loop of experiments (25 labels, 5 epochs), by turns with the plain way: 0.45 of its time, measured."""
    x, y = clusters(25, d=64, classes=10)
    head = build_head(64, 256, 10, torch_generator(0))
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)

    def plain():
        optimizer = torch.optim.AdamW(head.parameters(), lr=RECIPE["lr"], weight_decay=RECIPE["weight_decay"])
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(head(inputs), labels).backward()
            optimizer.step()

    def ours():
        train_head(head, x, y, generator=torch_generator(1), **{**RECIPE, "epochs": 5})

    best = {plain: float("inf"), ours: float("inf")}
    for _ in range(200):
        for train in best:
            start = time.perf_counter()
            train()
            best[train] = min(best[train], time.perf_counter() - start)
    assert best[ours] < 0.8 * best[plain]
