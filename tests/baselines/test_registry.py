"""Systems by name, and those of one's own."""

import pytest
from small_federation import digits

from cofal.baselines.registry import SYSTEMS, find_system
from cofal.errors import UserError


def test_noise_and_parameters_are_named():
    assert find_system("maxherding-perturbed-0.3").epsilon == 0.3
    assert find_system("probcover-central", {"probcover": {"delta": 0.5}}).params == {"delta": 0.5}
    assert find_system("ono-probcover", {"probcover": {"delta": 0.5}}).params == {"delta": 0.5}
    assert find_system("typiclust-central", {"probcover": {"delta": 0.5}}).params == {}


MINE = '''
def last(pool, budgets, rng, *, step=1):
    """The last rows of each client."""
    import numpy as np
    rows = [pool.offsets[k + 1] - 1 - i * step for k, b in enumerate(budgets.per_client) for i in range(b)]
    return np.array(rows)

class Late:
    def __call__(self, pool, budgets, rng):
        return last(pool, budgets, rng)

def whole(federation, budgets, seed):
    from cofal.baselines.registry import SYSTEMS
    return SYSTEMS["random"](federation, budgets, seed)

nothing = 3
'''


def test_a_selector_or_a_system_of_ones_own_is_named_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "mine_of_systems.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    world, budgets = digits(), [[1, 1, 1, 1]]
    ends = [(k, len(rows) - 1) for k, rows in enumerate(world.embeddings)]
    for name in ("last", "Late", "last-central", "last-per-client", "last-perturbed-0.2"):
        assert find_system(f"mine_of_systems:{name}")(world, budgets, 0).order == ends
    assert find_system("mine_of_systems:last", {"mine_of_systems:last": {"step": 2}}).params == {"step": 2}
    assert find_system("mine_of_systems:whole")(world, budgets, 0).order == SYSTEMS["random"](world, budgets, 0).order


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("maxherding-centre", "maxherding-central"),
        ("maxherding-perturbed-much", "not a number"),
        ("no_such_module_here:Selector", "cannot import"),
        ("json:no_such_thing", "no selector or system"),
        ("json:dumps-aggregate", "cannot run under"),
    ],
)
def test_a_wrong_name_is_told(name, told):
    with pytest.raises(UserError, match=told):
        find_system(name)
