"""The configuration: presets load, mistakes name the key, the value and the nearest right one."""

import pytest

from cofal.config import load, parse, presets, to_toml
from cofal.errors import UserError


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_loads_and_survives_its_own_toml(name, tmp_path):
    config = load(name)
    file = tmp_path / "again.toml"
    file.write_text(to_toml(config))
    assert load(str(file)) == config


def test_the_paper_presets_hold_the_paper_s_numbers():
    facts = {"cifar10-paper": (2, 0.75), "cifar100-paper": (4, 0.65), "imagenet100-paper": (4, 0.55)}
    for name, (clients, delta) in facts.items():
        config = load(name)
        assert (config.clients.count, config.selection.delta, config.selection.lengthscale) == (clients, delta, 1.0)
        assert (config.pretrain.rounds, config.pretrain.local_epochs, config.pretrain.batch_size) == (1000, 1, 256)
        assert config.train.hidden == 256


@pytest.mark.parametrize(
    ("values", "fragments"),
    [
        ({"pretrain": {"round": 3}}, ["pretrain.round", "3", "did you mean rounds?"]),
        ({"selectoin": {}}, ["selectoin", "did you mean selection?"]),
        ({"selection": {"methods": ["maxherd"]}}, ["selection.methods.0", "'maxherd'", "'maxherding'"]),
        ({"clients": {"split": "dirichlet", "alpha": -1}}, ["clients.alpha", "-1", "greater than 0"]),
        ({"clients": {"count": 0}}, ["clients.count", "0", "greater than or equal to 1"]),
        ({"clients": {"split": "dirichlet"}}, ["clients", "needs alpha"]),
        ({"clients": {"alpha": 0.1}}, ["alpha = 0.1", "dirichlet"]),
        ({"selection": {"budgets": [20, 10]}}, ["budgets = [20, 10]", "rising"]),
        ({"selection": {"budgets": []}}, ["selection.budgets"]),
        ({"selection": {"epsilon": 1.5}}, ["selection.epsilon = 1.5", "use a number of at least 0 and below 1.414"]),
        ({"selection": {"lengthscale": 1e200}}, ["selection.lengthscale", "1e+200"]),
        ({"selection": {"min_region": 10**12}}, ["selection.min_region", "1000000000000"]),
        ({"selection": {"min_region": True}}, ["selection.min_region"]),
        ({"selection": {"min_region": "5"}}, ["selection.min_region"]),
        (
            {"selection": {"secure_sums": True, "coordination": ["aggregate"], "shares": "auto"}},
            ["secure_sums = true hides what shares = 'auto' compares", "'equal'"],
        ),
        (
            {"selection": {"min_region": 2.5}},
            ["selection.min_region = 2.5: use a whole number of at least 1 and of at most 1000000"],
        ),
        ({"selection": {"shifts": "x"}}, ["selection.shifts = 'x': use a whole number of at least 0 and of at most 6"]),
        ({"selection": {"iterations": 1}}, ["selection.iterations = 1: use a whole number of at least 2"]),
        ({"selection": {"budgets": [5, 7.5]}}, ["selection.budgets.1 = 7.5: use a whole number"]),
        ({"selection": {"shares": [1.5, 2]}}, ["selection.shares.0 = 1.5: use a whole number"]),
        ({"selection": {"shares": "evn"}}, ["shares = 'evn' is not one of equal, proportional, auto"]),
        ({"clients": {"count": 2.5}}, ["clients.count = 2.5: use a whole number of at least 1"]),
        ({"engine": {"min_clients": 0.5}}, ["engine.min_clients = 0.5: use a whole number of at least 1"]),
        ({"seed": "a"}, ["seed = 'a': use a whole number of at least 0"]),
        ({"data": {"image_size": 5000}}, ["data.image_size = 5000: use a whole number of at least 1 and of at most"]),
        ({"selection": {"shifts": 7}}, ["selection.shifts", "7"]),
        ({"selection": {"schedule": "paper"}}, ["schedule = 'paper'", "min_region = 5", "set min_region = 1"]),
        (
            {"selection": {"count_noise": {"parameter": 4.0, "epsilon": 1.0}}},
            ["count_noise", "'per-client'", "leave it out"],
        ),
        ({"selection": {"delta": 3.0}}, ["delta = 3.0", "above 0 and at most 2, or 'auto'"]),
        ({"selection": {"delta": 0}}, ["delta = 0.0", "above 0 and at most 2, or 'auto'"]),
        (
            {"selection": {"coordination": ["aggregate"], "epsilon": 0.6}},
            ["epsilon = 0.6", "['aggregate']", "set it to 0"],
        ),
        (
            {"selection": {"coordination": ["auto"], "sharing": "aggregates", "epsilon": 0.6}},
            ["epsilon = 0.6", "none leaves a client"],
        ),
        ({"selection": {"methods": ["random"], "epsilon": 0.6}}, ["epsilon = 0.6", "['random']"]),
        ({"selection": {"secure_sums": True}}, ["secure_sums = true", "'per-client'", "to false"]),
        ({"selection": {"secure_sums": True, "coordination": ["auto"]}}, ["secure_sums = true", "['aggregate']"]),
        ({"data": {"source": "parket"}}, ["data.source", "'parket'", "'parquet'"]),
        ({"encoder": {"path": "a", "frozen": "b"}}, ["path and frozen"]),
        ({"name": "../x"}, ["name", "../x"]),
    ],
)
def test_a_mistake_names_key_value_and_remedy(values, fragments):
    with pytest.raises(UserError) as caught:
        parse(values, "my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml: ")
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_overrides_reach_their_key_and_keep_their_type():
    config = load("digits", ["clients.count=3", "selection.budgets=[5, 9]", "data.path=some/where", "seed=7"])
    assert (config.clients.count, config.selection.budgets, config.data.path, config.seed) == (
        3,
        [5, 9],
        "some/where",
        7,
    )


@pytest.mark.parametrize(
    "selection",
    [
        {"coordination": ["aggregate", "central"], "epsilon": 0.6},
        {"coordination": ["auto"], "epsilon": 0.6},
        {"coordination": ["aggregate", "per-client"], "secure_sums": True},
    ],
)
def test_noise_and_secure_sums_need_one_coordination_that_uses_them(selection):
    assert parse({"selection": selection}, "my.toml")


@pytest.mark.parametrize("item", ["clients.count", "=3", "seed.x=1", "clients.cuont=3"])
def test_a_bad_override_is_told(item):
    with pytest.raises(UserError):
        load("digits", [item])


def test_missing_and_broken_files_are_told(tmp_path):
    with pytest.raises(UserError, match="nothere"):
        load(str(tmp_path / "nothere.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("a = [1,")
    with pytest.raises(UserError, match="not valid TOML"):
        load(str(broken))
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        load(str(broken))
