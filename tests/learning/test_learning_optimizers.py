"""The optimisers move weights as `torch.optim`'s do, and load no compiler for it."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from cofal.errors import UserError
from cofal.learning.optimizers import make_optimizer


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adamw", 0.9)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_same_steps_as_torch(name, momentum, weight_decay):
    ours, theirs = network(), network()
    stepper = make_optimizer(name, ours.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    groups = [
        {"params": [p for p in theirs.parameters() if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in theirs.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if name == "sgd":
        reference = torch.optim.SGD(groups, lr=0.1, momentum=momentum, nesterov=momentum > 0, foreach=True)
    else:
        reference = torch.optim.AdamW(groups, lr=0.1, fused=True)
    for step in range(5):
        x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(step))
        for model, optimizer in ((ours, stepper), (theirs, reference)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_loads_no_compiler():
    program = """if True:
        import sys, torch
        from cofal.learning.optimizers import make_optimizer
        layer = torch.nn.Linear(3, 2)
        for name in ("sgd", "adamw"):
            stepper = make_optimizer(name, layer.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
            stepper.zero_grad()
            layer(torch.ones(1, 3)).sum().backward()
            stepper.step()
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("wrong", [{"lr": -0.1}, {"momentum": float("nan")}, {"weight_decay": -1.0}])
def test_refuses_impossible_options(wrong):
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, **wrong}
    with pytest.raises(UserError, match=next(iter(wrong))):
        make_optimizer("sgd", network().parameters(), **options)
    with pytest.raises(UserError, match="sgd, adamw"):
        make_optimizer("lion", network().parameters(), lr=0.1, momentum=0.9, weight_decay=0.0)
