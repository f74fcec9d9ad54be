"""Sites that answer with rubbish, too late, or never: named, left out, and the model is as if they were absent."""

import io
import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message
from flwr.clientapp import ClientApp

from cofal.errors import CofalError, UserError
from cofal.federation import delivery
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet, Member
from cofal.federation.grid import InProcessGrid
from cofal.federation.rounds import make_strategy, train_rounds
from cofal.rng import generator

SENT = {
    "weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "bn.running_mean": np.zeros(3, dtype=np.float32),
    "bn.running_var": np.ones(3, dtype=np.float32),
    "bn.num_batches_tracked": np.array(0, dtype=np.int64),
}
NAMES = ("a", "b", "bad", "c", "d", "e", "f")


def honest(name, arrays, number):
    rng = generator(1, name, number)
    return {
        "weight": (arrays["weight"] + 0.1 * rng.normal(size=(3, 4))).astype(np.float32),
        "bn.running_mean": (arrays["bn.running_mean"] + 0.1 * rng.normal(size=3)).astype(np.float32),
        "bn.running_var": (np.abs(arrays["bn.running_var"] + 0.1 * rng.normal(size=3))).astype(np.float32),
        "bn.num_batches_tracked": np.asarray(arrays["bn.num_batches_tracked"] + 3),
    }


def answer(arrays, examples=10, loss=1.0):
    return m.pack(arrays=arrays, metrics={m.EXAMPLES: examples, "loss": loss})


def raw(name, array):
    """An honest answer whose array `name` is replaced by a hand-made one."""

    def spoil(arrays):
        content = answer(arrays)
        record = dict(content[m.ARRAYS].items())
        content[m.ARRAYS] = ArrayRecord({**record, name: array})
        return content

    return spoil


def changed(**arrays):
    return lambda honest_arrays: answer({**honest_arrays, **arrays})


def declared(shape):
    """The head of a numpy file that promises an array of that shape."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return head.getvalue()


HUGE = (3, 4 * 10**12)
GOOD = Array(np.zeros((3, 4), dtype=np.float32))
FAULTS = {
    "NaN weights": changed(weight=np.full((3, 4), np.nan, dtype=np.float32)),
    "infinite weights": changed(weight=np.full((3, 4), np.inf, dtype=np.float32)),
    "a hundred times the norm": lambda arrays: answer({**arrays, "weight": 100 * arrays["weight"]}),
    "wrong shape": changed(weight=np.zeros((4, 3), dtype=np.float32)),
    "wrong type": changed(weight=np.zeros((3, 4), dtype=np.float64)),
    "an array too many": changed(more=np.zeros(2, dtype=np.float32)),
    "an array missing": lambda arrays: answer({key: value for key, value in arrays.items() if key != "weight"}),
    "no arrays": lambda arrays: m.pack(metrics={m.EXAMPLES: 10, "loss": 1.0}),
    "no metrics": lambda arrays: m.pack(arrays=arrays),
    "more samples than it has": lambda arrays: answer(arrays, examples=10**9),
    "a negative weight": lambda arrays: answer(arrays, examples=-5),
    "half a sample": lambda arrays: m.pack(arrays=arrays, metrics={m.EXAMPLES: 0.5, "loss": 1.0}),
    "a list of samples": lambda arrays: m.pack(arrays=arrays, metrics={m.EXAMPLES: [10], "loss": 1.0}),
    "NaN loss": lambda arrays: answer(arrays, loss=float("nan")),
    "truncated": raw("weight", Array("float32", (3, 4), "numpy.ndarray", GOOD.data[:-7])),
    "garbage": raw("weight", Array("float32", (3, 4), "numpy.ndarray", b"\x00garbage" * 9)),
    "a pickle": raw("weight", Array("float32", (3, 4), "numpy.ndarray", b"\x80\x04\x95.")),
    "another format": raw("weight", Array("float32", (3, 4), "torch", GOOD.data)),
    "a lie about its shape": raw("weight", Array("float32", (3, 10**12), "numpy.ndarray", GOOD.data)),
    "a huge array declared": raw("weight", Array("float32", HUGE, "numpy.ndarray", declared(HUGE) + bytes(48))),
    "a negative variance": changed(**{"bn.running_var": np.full(3, -1, dtype=np.float32)}),
    "an enormous variance": changed(**{"bn.running_var": np.full(3, 1e30, dtype=np.float32)}),
    "a negative counter": changed(**{"bn.num_batches_tracked": np.array(-4, dtype=np.int64)}),
}


class Sites(InProcessGrid):
    """Sites by name; `bad` answers as `spoil` makes it."""

    def __init__(self, names=NAMES, spoil=answer):
        self.spoil, self.away, self.log = spoil, {}, []
        app = ClientApp()
        app.train()(self.train)
        super().__init__(app, {number + 2: {"name": name} for number, name in enumerate(names)})

    def train(self, message, context):
        name = str(context.node_config["name"])
        number = m.config_of(message.content)["server-round"]
        self.log.append((number, name))
        arrays = honest(name, m.arrays_of(message.content), number)
        return Message((self.spoil if name == "bad" else answer)(arrays), reply_to=message)


def fleet(grid, min_clients=None, timeout=5.0, only=None):
    named = {str(context.node_config["name"]): node for node, context in grid._contexts.items()}
    members = {
        name: Member(name, node, 50, 0, 0, ["x"], (8, 8, 1)) for name, node in named.items() if not only or name in only
    }
    return Fleet(grid, timeout, min_clients, members=members)


def train(fleet, folder, strategy="fedavg", rounds=2, **options):
    return train_rounds(
        fleet, make_strategy(strategy, options), SENT, rounds=rounds, config=lambda number: {}, checkpoint=folder / "c"
    )


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """The model of the honest sites alone."""
    names = tuple(name for name in NAMES if name != "bad")
    return train(fleet(Sites(names)), tmp_path_factory.mktemp("honest"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_is_rejected_by_name_and_the_model_is_as_without_it(fault, tmp_path, without):
    some = fleet(Sites(spoil=FAULTS[fault]), min_clients=3)
    merged = train(some, tmp_path)
    assert some.missed.keys() == {"bad"}
    assert "rejected" in some.missed["bad"]
    assert "\n" not in some.missed["bad"]
    assert len(some.missed["bad"]) < 400
    for key in SENT:
        assert np.array_equal(merged[key], without[key]), key
    with pytest.raises(CofalError, match=r"1 of 7 sites failed: bad: its answer is rejected"):
        train(fleet(Sites(spoil=FAULTS[fault])), tmp_path / "all")


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("fedmedian", {}),
        ("fedtrimmedavg", {"beta": 0.2}),
        ("krum", {"num_malicious_nodes": 1}),
        ("multikrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 3}),
        ("bulyan", {"num_malicious_nodes": 1}),
    ],
)
def test_what_passes_the_checks_is_outvoted_by_a_robust_strategy(strategy, options, tmp_path):
    def poison(arrays):
        return answer(
            {
                **arrays,
                "weight": np.full((3, 4), 9.0, dtype=np.float32),
                "bn.running_var": np.full(3, 5000.0, dtype=np.float32),
            },
            examples=50,
        )

    states = [honest(name, SENT, 1) for name in NAMES if name != "bad"]
    low, high = (
        {key: pick([state[key] for state in states], axis=0) for key in SENT} for pick in (np.min, np.max)
    )  # honest answers lie between
    robust = train(fleet(Sites(spoil=poison)), tmp_path / "robust", strategy, rounds=1, **options)
    for key in SENT:
        assert (robust[key] >= low[key]).all(), key
        assert (robust[key] <= high[key]).all(), key
    plain = train(fleet(Sites(spoil=poison)), tmp_path / "plain", rounds=1)
    assert (plain["weight"] > high["weight"]).any()


# --- who comes late, goes, or comes twice


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr(delivery, "_ROLL_CALL", 0.02)


class Losing(Sites):
    """The first question to each node of `unlucky` is lost with its client, as Flower tells it."""

    def __init__(self, *unlucky, code=5):
        super().__init__()
        self.unlucky, self.code = set(unlucky), code

    def pull_messages(self, message_ids):
        (number,) = message_ids
        message = self._pushed.get(number)
        if message is not None and message.metadata.dst_node_id in self.unlucky:
            self.unlucky.discard(message.metadata.dst_node_id)
            del self._pushed[number]
            return [Message(Error(self.code, "node unavailable"), reply_to=message)]
        return super().pull_messages(message_ids)


@pytest.mark.parametrize("code", sorted(m.LOST))
def test_a_question_lost_with_its_client_is_asked_again(code, tmp_path, quickly):
    undisturbed = train(fleet(Sites()), tmp_path / "whole")
    grid = Losing(3, 5, code=code)
    disturbed = train(fleet(grid), tmp_path / "lost")
    assert not grid.unlucky
    for key in SENT:
        assert np.array_equal(disturbed[key], undisturbed[key])


class Restarting(Sites):
    """Node 3 takes its question with it when it is killed; it is back under the same id, connected anew."""

    def __init__(self):
        super().__init__()
        self.since, self.killed = "monday", False

    def get_nodes(self):
        from flwr.proto.node_pb2 import NodeInfo

        return [NodeInfo(node_id=node, last_activated_at=self.since) for node in self.get_node_ids()]

    def pull_messages(self, message_ids):
        (number,) = message_ids
        if number in self._pushed and self._pushed[number].metadata.dst_node_id == 3 and not self.killed:
            self.killed, self.since = True, "tuesday"
            del self._pushed[number]
        return super().pull_messages(message_ids)


def test_a_client_that_restarts_unnoticed_is_asked_again(tmp_path, quickly):
    grid = Restarting()
    disturbed = train(fleet(grid), tmp_path / "restarted")
    undisturbed = train(fleet(Sites()), tmp_path / "whole")
    assert grid.killed
    assert all(np.array_equal(disturbed[key], undisturbed[key]) for key in SENT)


class Silent(Sites):
    """Node 4 (`bad`) never answers."""

    def pull_messages(self, message_ids):
        return [
            reply
            for number in message_ids
            if number in self._pushed and self._pushed[number].metadata.dst_node_id != 4
            for reply in super(Silent, self).pull_messages([number])
        ]


def test_a_client_that_never_comes_back_is_named_after_the_time_out(tmp_path, without):
    some = fleet(Silent(), min_clients=6, timeout=0.3)
    merged = train(some, tmp_path)
    assert some.missed == {"bad": "no answer"}
    assert all(np.array_equal(merged[key], without[key]) for key in SENT)
    with pytest.raises(CofalError, match="bad: no answer"):
        train(fleet(Silent(), min_clients=7, timeout=0.3), tmp_path / "all")


def describing(grid, names):
    """Let the grid's clients tell who they are: node -> name."""

    def describe(message, context):
        said = {"name": names[context.node_id], "classes": ["x"], "image-shape": [8, 8, 1]}
        numbers = {m.EXAMPLES: 50, "known-labels": 0, "test-examples": 0}
        return Message(m.pack(config=said, metrics=numbers), reply_to=message)

    grid._app.query("describe")(describe)
    return grid


def test_a_site_that_comes_late_takes_part_from_the_next_round(tmp_path):
    grid = describing(Sites(), {node + 2: name for node, name in enumerate(NAMES)})
    some = fleet(grid, only=[name for name in NAMES if name != "f"])
    train(some, tmp_path)
    assert [name for number, name in grid.log if number == 1] == sorted(NAMES)
    assert "f" in some.members


def test_two_clients_of_one_name_are_both_named(caplog):
    grid = describing(Sites(("a", "b", "c")), {2: "north", 3: "south", 4: "north"})
    with pytest.raises(UserError, match=r"two sites call themselves 'north': node 2 and node 4; give each its own"):
        Fleet.gather(grid, expected=3, timeout=1)
    known = {"north": 4, "south": 3}  # from an earlier phase: the name is node 4's
    with caplog.at_level(logging.WARNING, logger="cofal"):
        some = Fleet.gather(grid, expected=3, timeout=1, known=known)
        some.muster()
    assert {name: member.node for name, member in some.members.items()} == known
    (line,) = (record.message for record in caplog.records if "call themselves" in record.message)
    assert "node 4" in line
    assert "node 2" in line


def test_too_few_sites_are_told_with_the_names_of_the_missing():
    grid = describing(Sites(("a", "b")), {2: "a", 3: "b"})
    with pytest.raises(CofalError, match=r"2 of 3 sites connected within 0 s \(c missing\)"):
        Fleet.gather(grid, expected=3, timeout=0.1, known={"a": 2, "b": 3, "c": 9})
    some = Fleet.gather(grid, expected=3, timeout=0.1, min_clients=2, known={"a": 2, "b": 3, "c": 9})
    assert some.missed == {"c": "not connected"}
