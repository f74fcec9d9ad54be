"""Federated rounds: the weighted mean of all state, whatever the order of answers; every strategy resumes."""

import random
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp

from cofal.errors import CofalError, UserError
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet, Member
from cofal.federation.grid import InProcessGrid
from cofal.federation.rounds import _STRATEGIES, make_strategy, train_rounds
from cofal.rng import generator

SIZES = {"a": 10, "b": 30, "c": 0, "d": 7, "e": 4, "f": 9, "g": 12, "h": 3, "i": 5}
ARRAYS = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bn.running_mean": np.zeros(3, dtype=np.float32),
    "bn.running_var": np.ones(3, dtype=np.float32),
    "bn.num_batches_tracked": np.array(0, dtype=np.int64),
}

client_app = ClientApp()


def local_update(name: str, arrays, number: int):
    """What a client of this test makes of the arrays: a seeded change of everything."""
    rng = generator(0, name, number)
    changed = {key: value + rng.normal(size=value.shape).astype(np.float32) for key, value in arrays.items()}
    changed["bn.running_var"] = np.abs(changed["bn.running_var"]) + 0.1
    changed["bn.num_batches_tracked"] = arrays["bn.num_batches_tracked"] + rng.integers(1, 9)
    return {key: np.asarray(changed[key], dtype=arrays[key].dtype) for key in arrays}


@client_app.train()
def train(message, context):
    name = str(context.node_config["name"])
    config, arrays = m.config_of(message.content), m.arrays_of(message.content)
    answer = local_update(name, arrays, config["server-round"])
    return Message(m.pack(arrays=answer, metrics={m.EXAMPLES: SIZES[name], "loss": 1.0}), reply_to=message)


class ShufflingGrid(InProcessGrid):
    """Answers arrive in a random order."""

    def pull_messages(self, message_ids):
        return super().pull_messages(message_ids) if random.random() < 0.5 else []


def fleet(names=tuple(SIZES), grid=ShufflingGrid):
    nodes = {number + 2: {"name": name} for number, name in enumerate(names)}
    members = {name: Member(name, node, SIZES[name], 0, 0, ["x"], (8, 8, 1)) for node, name in zip(nodes, names)}
    return Fleet(grid(client_app, nodes), timeout=10, members=members)


def run(strategy, tmp_path, rounds=3, names=tuple(SIZES), **hooks):
    return train_rounds(
        fleet(names),
        strategy,
        ARRAYS,
        rounds=rounds,
        config=lambda number: {},
        checkpoint=tmp_path / "c.safetensors",
        **hooks,
    )


OPTIONS = {
    "krum": {"num_malicious_nodes": 1},
    "multikrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "bulyan": {"num_malicious_nodes": 1},
    "fedprox": {"proximal_mu": 0.1},
    "fedavgm": {"server_momentum": 0.5},
}


def test_fedavg_is_the_weighted_mean_of_all_state(tmp_path):
    merged = run(make_strategy("fedavg", {}), tmp_path, rounds=1)
    states = {name: local_update(name, ARRAYS, 1) for name in SIZES}
    total = sum(SIZES.values())
    for key, kind in ((key, value.dtype) for key, value in ARRAYS.items()):
        expected = sum(states[name][key].astype(np.float64) * SIZES[name] / total for name in SIZES)
        expected = np.rint(expected) if kind == np.int64 else expected
        assert (merged[key].dtype, merged[key].shape) == (kind, ARRAYS[key].shape)
        assert np.allclose(merged[key], expected, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(_STRATEGIES))
def test_bits_do_not_depend_on_the_order_of_answers_nor_on_an_interruption(name, tmp_path):
    def fresh():
        return make_strategy(name, OPTIONS.get(name, {}))

    whole = run(fresh(), tmp_path / "whole")
    again = run(fresh(), tmp_path / "again")
    first = run(fresh(), tmp_path / "cut", rounds=2)  # leaves the checkpoint of round 2
    resumed = []
    cut = run(fresh(), tmp_path / "cut", on_resume=resumed.append)
    assert resumed == [2]
    for key in ARRAYS:
        assert np.array_equal(whole[key], again[key])
        assert np.array_equal(whole[key], cut[key]), key
        assert np.isfinite(whole[key]).all()
    assert not np.array_equal(first["weight"], whole["weight"])
    assert (whole["bn.running_var"] > 0).all()


def test_a_site_without_samples_changes_nothing(tmp_path):
    with_empty = run(make_strategy("fedmedian", {}), tmp_path / "with", names=("a", "b", "c", "d"))
    without = run(make_strategy("fedmedian", {}), tmp_path / "without", names=("a", "b", "d"))
    for key in ARRAYS:
        assert np.array_equal(with_empty[key], without[key])


def test_no_samples_anywhere_is_told(tmp_path):
    with pytest.raises(CofalError, match="no site has a sample"):
        run(make_strategy("fedavg", {}), tmp_path, names=("c",))


def test_a_strategy_s_wrong_argument_is_told():
    with pytest.raises(UserError, match="proximal"):
        make_strategy("fedavg", {"proximal_mu": 1.0})


def test_a_failing_site_is_named(tmp_path):
    broken = fleet(("a", "b"))
    broken.members["zz"] = replace(broken.members["a"], name="zz", node=77)
    content = m.pack(arrays=ARRAYS, config={"server-round": 1})
    with pytest.raises(CofalError, match="1 of 3 sites failed: zz: "):
        broken.ask(m.TRAIN, dict.fromkeys(broken.names, content), lambda name, content: None)
