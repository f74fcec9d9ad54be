"""Totals are exact whoever drops out as agreed, and what the server sees below the threshold tells it nothing."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from secure_consortium import ROUNDS, Consortium, numbers, plain_total, same

from cofal.privacy.secure_sum import SumFailed, envelope, lanes, masks, shamir


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Four clients with rounds enough for every example: each takes the next one."""
    consortium = Consortium(tmp_path_factory.mktemp("four"), 4, rounds=256)
    return consortium, itertools.count()


def int32s(clients: int):
    """Arrays whose totals keep to the limit: each client has its part of it."""
    largest = (2**31 - 1) // clients
    sides = st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple)
    number = st.one_of(st.integers(-largest, largest), st.sampled_from([-largest, 0, largest]))

    @st.composite
    def inputs(draw):
        shapes = draw(st.dictionaries(st.text(max_size=3), sides, min_size=1, max_size=3))
        return [
            {
                key: np.array(draw(st.lists(number, min_size=size, max_size=size)), dtype=np.int32).reshape(shape)
                for key, shape in shapes.items()
                for size in [int(np.prod(shape))]
            }
            for _ in range(clients)
        ]

    return inputs()


@settings(max_examples=20, deadline=None)
@given(int32s(4))
def test_totals_are_exact(four, arrays):
    consortium, rounds = four
    inputs = dict(zip(consortium.names, arrays))
    assert same(consortium.total(next(rounds), inputs), plain_total(inputs))


def test_totals_reach_the_limits(four):
    consortium, rounds = four
    ends = np.array([2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0], dtype=np.int64)
    parts = [ends // 4, ends // 4, ends // 4, ends - 3 * (ends // 4)]
    inputs = {name: {"x": part.astype(np.int32)} for name, part in zip(consortium.names, parts)}
    assert np.array_equal(consortium.total(next(rounds), inputs)["x"], ends)


@pytest.mark.parametrize("clients", [3, 4, 5, 6])
def test_any_one_client_may_drop_out(tmp_path, clients):
    consortium = Consortium(tmp_path, clients, rounds=2 * clients)
    inputs = numbers(consortium.names)
    for position, name in enumerate(consortium.names):
        assert same(consortium.total(2 * position, inputs, before=[name]), plain_total(inputs, lost=[name]))
        # Lost after its numbers arrived, a client still counts.
        assert same(consortium.total(2 * position + 1, inputs, within=[name]), plain_total(inputs))


def test_two_of_five_may_drop_out(tmp_path):
    consortium = Consortium(tmp_path, 5, rounds=20)
    inputs = numbers(consortium.names)
    for position, pair in enumerate(itertools.combinations(consortium.names, 2)):
        assert same(consortium.total(2 * position, inputs, before=pair), plain_total(inputs, lost=pair))
        assert same(consortium.total(2 * position + 1, inputs, within=pair), plain_total(inputs))


def test_too_many_lost_is_said_and_a_new_round_helps(tmp_path):
    consortium = Consortium(tmp_path, 5)
    inputs = numbers(consortium.names)
    with pytest.raises(SumFailed, match=r"2 of 5 clients gave their numbers and 3 must; repeat the sum in a new round"):
        consortium.total(0, inputs, before=consortium.names[:3])
    with pytest.raises(SumFailed, match=r"2 of 5 clients unmasked round 1, 3 must"):
        consortium.total(1, inputs, within=consortium.names[:3])
    with pytest.raises(SumFailed, match="'site0' was lost before the sum and 'site1' within it"):
        consortium.total(2, inputs, before=["site0"], within=["site1"])
    assert same(consortium.total(3, inputs, before=["site0"]), plain_total(inputs, lost=["site0"]))


def test_a_client_lost_during_set_up_only_counts_as_dropped_out(tmp_path):
    consortium = Consortium(tmp_path, 4, lost="site2")
    inputs = numbers(consortium.names)
    assert same(consortium.total(0, inputs, before=["site2"]), plain_total(inputs, lost=["site2"]))


def test_shapes_that_differ_are_noticed(tmp_path):
    consortium = Consortium(tmp_path, 3)
    inputs = {name: {"x": np.zeros((2, 3), dtype=np.int32)} for name in consortium.names}
    inputs["site1"] = {"x": np.zeros((3, 2), dtype=np.int32)}
    with pytest.raises(SumFailed, match="do not cancel"):
        consortium.total(0, inputs)
    inputs["site1"] = {"x": np.zeros((9, 2), dtype=np.int32)}
    with pytest.raises(SumFailed, match="'site1'"):
        consortium.total(1, inputs)


def test_garbage_from_a_client_never_becomes_a_total(tmp_path):
    consortium = Consortium(tmp_path, 3)
    inputs = numbers(consortium.names)
    masked = consortium.masked(0, inputs)
    unmasked = {name: consortium.open(name).unmask(0, consortium.names) for name in consortium.names}
    shapes = {"counts": (5,), "sums": (4, 3)}
    assert same(consortium.collector.total(0, masked, unmasked, shapes), plain_total(inputs))
    for wrong in (b"", unmasked["site1"][:-1], bytes(len(unmasked["site1"]))):
        spoiled = {"site1": wrong, "site2": unmasked["site2"]}
        with pytest.raises(SumFailed):
            consortium.collector.total(0, masked, spoiled, shapes)
    with pytest.raises(SumFailed, match="do not cancel"):
        consortium.collector.total(0, {**masked, "site0": masked["site1"]}, unmasked, shapes)


# --- what the server sees


def test_masked_numbers_look_uniform_and_never_repeat(tmp_path):
    consortium = Consortium(tmp_path, 3, seed=7)
    zeros = {name: {"x": np.zeros(40_000, dtype=np.int32)} for name in consortium.names}
    seen = [*consortium.masked(0, zeros).values(), *consortium.masked(1, zeros).values()]
    for words in seen:
        raw = words.view(np.uint8)
        assert chisquare(np.bincount(raw, minlength=256)).pvalue > 1e-4
        bits = np.unpackbits(raw).reshape(-1, 64).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(len(words))
    for left, right in itertools.combinations(seen, 2):
        assert not (left == right).any()
        assert not (left == -right).any()


def test_each_mask_alone_hides_the_numbers(tmp_path):
    """Whoever lacks any one mask of a client is left with noise; with all of them, the numbers come out."""
    consortium = Consortium(tmp_path, 4, seed=3)
    arrays = {"x": np.arange(1000, dtype=np.int32)}
    client = consortium.open("site1")
    y = client.masked(0, arrays)
    plain = np.append(lanes.pack(arrays), np.uint64(1))
    layout = lanes.layout({"x": (1000,)})
    seeds = {"own": client._self_seed(0)} | {name: client._pair_seed(name, 0) for name in client._pairs}
    signed = {who: masks.mask(seed, "s1", 0, layout, len(y)) for who, seed in seeds.items()}
    signed["site0"] = -signed["site0"]  # the later name subtracts
    assert np.array_equal(y - sum(signed.values()), plain)
    for missing in signed:
        left = y - sum(mask for who, mask in signed.items() if who != missing)
        assert not (left == plain).any()
        assert chisquare(np.bincount(left.view(np.uint8), minlength=256)).pvalue > 1e-4


def test_both_ends_of_a_pair_have_the_same_seed_and_each_round_another(tmp_path):
    consortium = Consortium(tmp_path, 3)
    first, second = consortium.open("site0"), consortium.open("site1")
    assert first._pair_seed("site1", 0) == second._pair_seed("site0", 0)
    everything = {first._pair_seed(name, r) for name in ("site1", "site2") for r in range(ROUNDS)}
    everything |= {client._self_seed(r) for client in (first, second) for r in range(ROUNDS)}
    assert len(everything) == 4 * ROUNDS
    layouts = [lanes.layout(shapes) for shapes in ({"x": (2, 3)}, {"x": (3, 2)}, {"y": (2, 3)})]
    streams = {masks.mask(bytes(32), "s1", 0, layout, 4).tobytes() for layout in layouts}
    streams |= {masks.mask(bytes(32), session, r, layouts[0], 4).tobytes() for session, r in [("s2", 0), ("s1", 1)]}
    assert len(streams) == 5


def pry(told: dict[str, list[str]], replies: dict[str, bytes], needed: int) -> set[str]:
    """Whose replies a server opens that tries every pad it was given on every share, whoever was told what."""
    hidden, given = {}, {}
    for name, reply in replies.items():
        others = [other for other in told[name] if other != name]
        tables = np.frombuffer(reply[: 64 * len(others)], dtype=np.uint8).reshape(2, len(others), 32)
        hidden[name], given[name] = (dict(zip(others, table)) for table in tables)
    opened = set()
    for name, reply in replies.items():
        others = list(hidden[name])
        helpers = [other for other in others if name in given.get(other, {})]
        for group in itertools.combinations(helpers, needed):
            shares = np.stack([hidden[name][other] ^ given[other][name] for other in group])
            key = shamir.join([others.index(other) for other in group], shares).tobytes()
            request = masks.encode("s1", 0, *told[name])
            if envelope.unseal(key, reply[64 * len(others) :], request, name) is not None:
                opened.add(name)
    return opened


@pytest.mark.parametrize("clients", [3, 4, 5])
def test_a_server_that_tells_everyone_other_survivors_opens_nothing(tmp_path, clients):
    """Told different survivors, the clients would between them give away every mask of one of them."""
    consortium = Consortium(tmp_path, clients)
    names, needed = consortium.names, clients // 2
    consortium.masked(0, numbers(names))
    apart = {name: sorted((names * 2)[index : index + needed + 1]) for index, name in enumerate(names)}
    assert len({tuple(each) for each in apart.values()}) == clients
    replies = {name: consortium.open(name).unmask(0, survivors) for name, survivors in apart.items()}
    assert pry(apart, replies, needed) == set()


def test_a_server_that_tells_all_the_same_opens_all(tmp_path):
    consortium = Consortium(tmp_path, 5)
    consortium.masked(0, numbers(consortium.names))
    told = dict.fromkeys(consortium.names[:4], consortium.names[:4])
    replies = {name: consortium.open(name).unmask(0, survivors) for name, survivors in told.items()}
    assert pry(told, replies, 2) == set(told)
    # One that was told something else neither opens nor helps to open.
    told["site3"] = consortium.names
    elsewhere = Consortium(tmp_path / "again", 5)
    elsewhere.masked(0, numbers(consortium.names))
    replies = {name: elsewhere.open(name).unmask(0, survivors) for name, survivors in told.items()}
    assert pry(told, replies, 2) == {"site0", "site1", "site2"}
    assert pry(told, {name: replies[name] for name in ("site1", "site2", "site3")}, 2) == set()


def test_fewer_replies_than_the_threshold_open_nothing(tmp_path):
    consortium = Consortium(tmp_path, 6)
    consortium.masked(0, numbers(consortium.names))
    replies = {name: consortium.open(name).unmask(0, consortium.names) for name in consortium.names}
    for count in range(1, 7):
        opened = envelope.open_together(
            dict(list(replies.items())[:count]),
            request=masks.encode("s1", 0, *consortium.names),
            survivors=consortium.names,
            needed=3,
            size=32 * 6,
        )
        assert [content is not None for content in opened.values()] == [count >= 4] * count


def test_clients_that_were_asked_different_things_do_not_add_up(tmp_path):
    """Else a server could ask all but one for what they answer with zeros, and read the one."""
    consortium, inputs = Consortium(tmp_path, 3), numbers(["site0", "site1", "site2"])
    zeros = {name: np.zeros_like(array) for name, array in inputs["site0"].items()}
    told = {name: inputs[name] if name == "site0" else zeros for name in inputs}
    for round, other in enumerate(("all rows", "none")):
        masked = {
            name: consortium.open(name).masked(round, arrays, "all rows" if name == "site0" else other)
            for name, arrays in told.items()
        }
        unmasked = {name: consortium.open(name).unmask(round, sorted(masked)) for name in masked}
        shapes = {name: array.shape for name, array in zeros.items()}
        if other == "all rows":
            assert same(consortium.collector.total(round, masked, unmasked, shapes, "all rows"), inputs["site0"])
        else:
            with pytest.raises(SumFailed, match="asked different things"):
                consortium.collector.total(round, masked, unmasked, shapes, "all rows")
