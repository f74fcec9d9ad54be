"""Each system's own rule, as its paper gives it, by hand or by a naive re-implementation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_federation import digits

from cofal.baselines import kafal as kafal_file
from cofal.baselines.badge import plus_plus
from cofal.baselines.core_set import core_set
from cofal.baselines.gradients import gradient_embeddings
from cofal.baselines.logo import cluster, most_uncertain
from cofal.baselines.ono import most_confident
from cofal.baselines.registry import SYSTEMS
from cofal.baselines.uncertainty import entropy, least_confidence, margin
from cofal.errors import UserError
from cofal.learning.head import build_head
from cofal.rng import generator, torch_generator
from cofal.selection import select


def test_scores_by_hand():
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.4, 0.3, 0.3]])
    assert entropy(p) == pytest.approx([np.log(2), 0, -0.4 * np.log(0.4) - 0.6 * np.log(0.3)])
    assert least_confidence(p) == pytest.approx([0.5, 0, 0.6])
    assert margin(p) == pytest.approx([0, -1, -0.1])


def test_the_most_confident_classifier_answers():
    first = np.array([[0.6, 0.4], [0.5, 0.5]], dtype=np.float32)
    second = np.array([[0.3, 0.7], [0.5, 0.5]], dtype=np.float32)
    assert most_confident([first, second]).argmax(axis=1).tolist() == [1, 0]


def test_own_encoders_are_needed_and_told():
    with pytest.raises(UserError, match="own encoder"):
        SYSTEMS["ono-typiclust"](digits(), [[1] * 4], 0)


def test_a_client_of_its_own_never_sees_another():
    """Its picks in the per-client pipeline depend on its own rows alone."""
    world = digits(own=True)
    turn = (0, 2, 3, 1)
    changed = replace(
        world,
        own=[world.own[k] for k in turn],
        embeddings=[world.embeddings[k] for k in turn],
        labels=[world.labels[k] for k in turn],
    )
    picks = SYSTEMS["ono-typiclust"](changed, [[3, 3, 3, 3]], 0).order
    before = SYSTEMS["ono-typiclust"](world, [[3, 3, 3, 3]], 0).order
    assert [row for k, row in picks if k == 0] == [row for k, row in before if k == 0]


def test_gradient_embeddings_are_autograds():
    head = build_head(8, 5, 3, torch_generator(0))
    x = generator(0, "x").normal(size=(6, 8)).astype(np.float32)
    found = gradient_embeddings(head, x)
    whole = np.stack([np.outer(e, h).ravel() for e, h in zip(found.error, found.hidden)])
    for row, expected in zip(x, whole):
        head.zero_grad()
        logits = head(torch.from_numpy(row)[None])
        torch.nn.functional.cross_entropy(logits, logits.argmax(1)).backward()
        np.testing.assert_allclose(head.outer.weight.grad.numpy().ravel(), expected, atol=1e-6)
    np.testing.assert_allclose(found.norms, (whole**2).sum(1), rtol=1e-5)
    np.testing.assert_allclose(found.distances(2), ((whole - whole[2]) ** 2).sum(1), atol=1e-5)
    assert np.array_equal(found.sketch(15, generator(0)), whole)


def test_a_sketch_keeps_inner_products():
    head = build_head(16, 64, 20, torch_generator(0))
    found = gradient_embeddings(head, generator(0, "x").normal(size=(30, 16)).astype(np.float32))
    whole = np.stack([np.outer(e, h).ravel() for e, h in zip(found.error, found.hidden)])
    sketched = found.sketch(1024, generator(0, "sketch"))
    scale = (whole**2).sum(1).mean()
    assert np.abs(sketched @ sketched.T - whole @ whole.T).mean() < 0.06 * scale


def test_badge_takes_the_longest_gradient_first_and_never_a_copy_while_others_are_left():
    head = build_head(4, 6, 3, torch_generator(0))
    x = np.repeat(generator(0, "x").normal(size=(5, 4)), 4, axis=0).astype(np.float32)
    found = gradient_embeddings(head, x)
    chosen = plus_plus(found, 12, generator(0))
    assert chosen[0] == found.norms.argmax()
    assert len({row // 4 for row in chosen[:5]}) == 5
    assert len(set(chosen)) == 12


def test_logo_takes_the_most_uncertain_of_every_group():
    groups = np.array([0, 0, 1, 1, 2])
    uncertainty = np.array([0.1, 0.9, 0.4, 0.3, 0.2])
    assert most_uncertain(groups, uncertainty, 3).tolist() == [1, 2, 4]
    assert most_uncertain(groups, uncertainty, 5).tolist() == [1, 2, 4, 3, 0]
    points = np.repeat(np.eye(3), 4, axis=0)
    found = cluster(points, 3, generator(0))
    assert len({tuple(found[4 * k : 4 * k + 4]) for k in range(3)}) == 3


def test_core_set_is_the_farthest_row_again_and_again():
    rows = digits().embeddings[0]
    picks = select([rows], [8], core_set, labeled=[np.array([5, 9])]).indices[0].tolist()
    centers = [5, 9]
    for pick in picks:
        nearest = np.min([((rows - rows[c]) ** 2).sum(1) for c in centers], axis=0)
        assert nearest[pick] == pytest.approx(nearest.max(), abs=1e-5)
        centers.append(pick)


def test_kafals_discrepancy_by_its_formula():
    rng = torch_generator(0)
    local, shared = torch.randn(7, 4, generator=rng), torch.randn(7, 4, generator=rng)
    counts = torch.tensor([3.0, 0.0, 1.0, 9.0])
    found = kafal_file.specialised_discrepancy(local, shared, counts)
    known = [0, 2, 3]
    for i in range(7):
        p = torch.softmax(local[i, known] + counts[known].log(), 0)
        q = torch.softmax(shared[i, known] + counts[known].log(), 0)
        expected = 0.5 * ((p * (p / q).log()).sum() + (q * (q / p).log()).sum())
        assert found[i] == pytest.approx(expected.item(), abs=1e-6)
    assert (kafal_file.specialised_discrepancy(local, local, counts) == 0).all()


def test_kafals_balanced_softmax_leaves_unknown_classes_alone():
    """Plain training pushes classes without a label down; this one gives them no gradient."""
    world = digits()
    two = [int(np.flatnonzero(world.labels[0] == c)[0]) for c in (3, 7)]
    head = build_head(64, 16, 10, torch_generator(0))
    before = head.outer.weight.detach().clone()
    told = {"optimizer": "sgd", "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "epochs": 3, "batch_size": 8}
    kafal_file._Client(world, 0, two).train(head, {**told, "generator": torch_generator(1)})
    moved = (head.outer.weight.detach() - before).abs().sum(dim=1) > 0
    assert moved.nonzero().ravel().tolist() == [3, 7]
