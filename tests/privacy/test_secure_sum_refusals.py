"""What a client refuses, each in one line; what it repeats after a retry, a restart or a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from secure_consortium import ROUNDS, Consortium, numbers, plain_total, same

from cofal.errors import UserError
from cofal.privacy.secure_sum import MOST_ROUNDS, Collector, Session, masks, public_identity, site_identity


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A consortium whose set-up is done and whose round 0 is masked and unmasked by all."""
    consortium = Consortium(tmp_path_factory.mktemp("three"), 3)
    consortium.total(0, numbers(consortium.names))
    return consortium


def fresh(folder: Path, clients: int = 3) -> tuple[list[Session], dict[str, bytes]]:
    """Sessions that have shown their keys and no more."""
    names = [f"site{index}" for index in range(clients)]
    sessions = [Session.start(folder / name, "s1", name) for name in names]
    return sessions, {session.name: session.keys() for session in sessions}


def one_line(error: pytest.ExceptionInfo) -> bool:
    return "\n" not in str(error.value)


# --- who takes part


@pytest.mark.parametrize("clients", [0, 1, 2])
def test_fewer_than_three_clients_are_refused_by_both_sides(tmp_path, clients):
    sessions, keys = fresh(tmp_path, clients)
    with pytest.raises(UserError, match=rf"at least 3 clients, and {clients} take part") as told:
        Collector("s1", keys)
    assert one_line(told)
    for session in sessions:
        with pytest.raises(UserError, match="at least 3 clients"):
            session.shares(keys, ROUNDS)


def test_more_clients_than_points_are_refused():
    with pytest.raises(UserError, match="at most 255 clients, not 256"):
        Collector("s1", {str(index): bytes(32) for index in range(256)})


@pytest.mark.parametrize("rounds", [0, -1, MOST_ROUNDS + 1])
def test_the_number_of_rounds_is_capped(tmp_path, rounds):
    sessions, keys = fresh(tmp_path)
    with pytest.raises(UserError, match="choose 1 to 256"):
        sessions[0].shares(keys, rounds)


# Points of low order, for which every client would get the same, known secret; the last is 1 + p, another name of 1.
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


@pytest.mark.parametrize("point", LOW_ORDER, ids=range(len(LOW_ORDER)))
def test_points_of_low_order_are_refused(tmp_path, point):
    sessions, keys = fresh(tmp_path)
    with pytest.raises(UserError, match="'site2' is not a valid X25519 point"):
        sessions[0].shares({**keys, "site2": point}, ROUNDS)


def test_lists_that_are_not_what_the_clients_gave_are_refused(tmp_path):
    sessions, keys = fresh(tmp_path, 4)
    other = Session.start(tmp_path / "elsewhere", "s1", "site0").keys()
    same_point = keys["site2"][:31] + bytes([keys["site2"][31] | 0x80])  # the top bit of a point is not read
    for wrong, said in [
        ({name: key for name, key in keys.items() if name != "site0"}, "lacks 'site0'"),
        ({**keys, "site0": other}, "another key for 'site0' than it gave"),
        ({**keys, "site3": keys["site2"]}, "'site2' and 'site3' have the same key"),
        ({**keys, "site3": same_point}, "'site2' and 'site3' have the same key"),
        ({**keys, "site3": keys["site0"]}, "'site0' and 'site3' have the same key"),
        ({**keys, "site1": keys["site1"][:31]}, "'site1' has 31 bytes"),
        ({**keys, "site1": keys["site1"] + bytes(3)}, "'site1' has 35 bytes"),
    ]:
        with pytest.raises(UserError, match=said) as told:
            sessions[0].shares(wrong, ROUNDS)
        assert one_line(told)
    assert not list(tmp_path.glob("**/roster.json"))
    sessions[0].shares(keys, ROUNDS)


def test_another_roster_under_the_same_name_is_refused(three):
    session = three.open("site0")
    assert session.shares(three.keys, ROUNDS) == three.shares["site0"]  # the same again is the same answer
    stranger = Session.start(three.root / "stranger", "s1", "site3").keys()
    for keys, rounds in [({**three.keys, "site3": stranger}, ROUNDS), (three.keys, ROUNDS + 1)]:
        with pytest.raises(UserError, match="already has another list of clients"):
            session.shares(keys, rounds)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\n", "x" * 101])
def test_session_names_stay_inside_the_folder(tmp_path, name):
    with pytest.raises(UserError, match="is not allowed"):
        Session.start(tmp_path, name, "site0")
    assert not list(tmp_path.iterdir())


def test_one_folder_is_one_client(tmp_path):
    Session.start(tmp_path, "s1", "site0")
    with pytest.raises(UserError, match="started here by 'site0', not 'site1'"):
        Session.start(tmp_path, "s1", "site1")


# --- pinned identities


def signed(folder: Path, pinned: bool = True):
    names = ["a", "b", "c"]
    signers = {name: site_identity(folder / name) for name in names}
    peers = {name: public_identity(signer) for name, signer in signers.items()}
    return {
        name: Session.start(folder / name, "s1", name, signer=signers[name], peers=peers if pinned else None)
        for name in names
    }


def test_signed_keys_of_pinned_peers_are_taken(tmp_path):
    sessions = signed(tmp_path)
    keys = {name: session.keys() for name, session in sessions.items()}
    assert {len(key) for key in keys.values()} == {96}
    assert sessions["a"].shares(keys, ROUNDS).keys() == {"b", "c"}
    assert site_identity(tmp_path / "a") == site_identity(tmp_path / "a") != site_identity(tmp_path / "b")


def test_keys_that_pinned_peers_did_not_sign_are_refused(tmp_path):
    sessions = signed(tmp_path)
    keys = {name: session.keys() for name, session in sessions.items()}
    between = Session.start(tmp_path / "server", "s1", "b", signer=site_identity(tmp_path / "server")).keys()
    elsewhen = Session.start(tmp_path / "b", "s0", "b", signer=site_identity(tmp_path / "b")).keys()
    for wrong, said in [
        ({**keys, "b": between}, "'b' has a wrong signature"),
        ({**keys, "b": between[:32] + keys["b"][32:]}, "'b' has a wrong signature"),
        ({**keys, "b": elsewhen}, "'b' has a wrong signature"),  # signed by b, for another session
        ({**keys, "b": keys["c"], "c": keys["b"]}, "has a wrong signature"),
        ({**keys, "b": keys["b"][:32]}, "'b' is not signed"),
        ({**keys, "d": between}, "'d' is not among the pinned peers"),
    ]:
        with pytest.raises(UserError, match=said) as told:
            sessions["a"].shares(wrong, ROUNDS)
        assert one_line(told)


def test_pins_hold_from_the_next_message_on(tmp_path):
    """A list that was accepted before anyone was pinned is held against the pins all the same."""
    sessions = signed(tmp_path, pinned=False)
    keys = {name: session.keys() for name, session in sessions.items()}
    keys["c"] = Session.start(tmp_path / "server", "s1", "c", signer=site_identity(tmp_path / "server")).keys()
    sessions["a"].shares(keys, ROUNDS)
    arrays = {"x": np.zeros(2, dtype=np.int32)}
    sessions["a"].masked(0, arrays)
    with pytest.raises(UserError, match="'c' has a wrong signature"):
        signed(tmp_path)["a"].masked(1, arrays)


def test_a_client_s_own_key_is_known_without_its_signature(tmp_path):
    """A site may begin to sign in the middle of a session, when its software is renewed."""
    _, keys = fresh(tmp_path)
    mine = site_identity(tmp_path / "site0")
    renewed = Session.start(tmp_path / "site0", "s1", "site0", signer=mine)
    assert renewed.shares(keys, ROUNDS).keys() == {"site1", "site2"}
    with pytest.raises(UserError, match="'site0' is not signed"):
        Session.start(tmp_path / "site0", "s1", "site0", peers={"site0": public_identity(mine)}).shares(keys, ROUNDS)


# --- shares


def test_shares_that_were_changed_or_swapped_are_refused(tmp_path):
    sessions, keys = fresh(tmp_path)
    shares = {session.name: session.shares(keys, ROUNDS) for session in sessions}
    good = shares["site1"]["site0"]
    flipped = bytes([good[0] ^ 1]) + good[1:]
    for wrong in (
        flipped,
        good[:-1],
        b"",
        shares["site1"]["site2"],
        shares["site0"]["site1"],
        shares["site2"]["site0"],
    ):
        with pytest.raises(UserError, match="'site1' do not open at 'site0'"):
            sessions[0].receive({"site1": wrong, "site2": shares["site2"]["site0"]})
    for sender in ("site0", "nobody"):
        with pytest.raises(UserError, match=f"'{sender}' is no other client"):
            sessions[0].receive({sender: good})


def test_shares_are_kept_once(three):
    session = three.open("site0")
    session.receive(three.collector.inbox("site0", three.shares))
    with pytest.raises(UserError, match="already has other shares"):
        session.receive({"site1": three.shares["site1"]["site0"]})


def test_no_unmasking_without_shares(tmp_path):
    sessions, keys = fresh(tmp_path)
    with pytest.raises(UserError, match="has no list of clients"):
        sessions[0].masked(0, {"x": np.zeros(2, dtype=np.int32)})
    shares = [session.shares(keys, ROUNDS) for session in sessions]
    sessions[0].masked(0, {"x": np.zeros(2, dtype=np.int32)})
    with pytest.raises(UserError, match="'site0' holds no shares from 'site1'"):
        sessions[0].unmask(0, list(keys))
    # The refusal used nothing up.
    sessions[0].receive({"site1": shares[1]["site0"], "site2": shares[2]["site0"]})
    sessions[0].unmask(0, list(keys))


# --- sums


def test_a_second_question_under_the_same_mask_is_refused(three):
    arrays = numbers(three.names)["site0"]
    first = three.open("site0").masked(0, arrays)
    assert np.array_equal(three.open("site0").masked(0, dict(reversed(arrays.items()))), first)
    others = [
        {**arrays, "counts": arrays["counts"] + np.int32(1)},
        {**arrays, "counts": arrays["counts"].reshape(1, 5)},
        {"counts2": arrays["counts"], "sums": arrays["sums"]},
    ]
    for other in others:
        with pytest.raises(
            UserError, match=r"already answered round 0 of session s1 with other numbers.*new round"
        ) as told:
            three.open("site0").masked(0, other)
        assert one_line(told)
    assert np.array_equal(three.open("site0").masked(0, arrays), first)


def test_a_second_set_of_survivors_is_refused(three):
    first = three.open("site0").unmask(0, three.names)
    assert three.open("site0").unmask(0, three.names[::-1]) == first  # the same set in another order
    with pytest.raises(UserError, match=r"already unmasked round 0 of session s1 for other survivors.*new round"):
        three.open("site0").unmask(0, ["site0", "site1"])
    assert three.open("site0").unmask(0, three.names) == first


def test_survivors_that_cannot_be_are_refused(three):
    three.open("site0").masked(1, numbers(three.names)["site0"])
    for survivors, said in [
        (["site0"], "only 1 of 3 clients survive round 1 and 2 must"),
        (["site1", "site2"], "lack itself"),
        (["site0", "site0", "site1"], "repeat a name"),
        (["site0", "site1", "mallory"], "name 'mallory'"),
    ]:
        with pytest.raises(UserError, match=said):
            three.open("site0").unmask(1, survivors)
    with pytest.raises(UserError, match="'site1' gave no numbers in round 1"):
        three.open("site1").unmask(1, ["site0", "site1"])
    three.open("site0").unmask(1, ["site0", "site1"])


@pytest.mark.parametrize("round", [-1, ROUNDS])
def test_rounds_end(three, round):
    for ask in (lambda s: s.masked(round, {"x": np.zeros(2, dtype=np.int32)}), lambda s: s.unmask(round, three.names)):
        with pytest.raises(UserError, match=rf"round {round} is not among the {ROUNDS} of session s1; start a new"):
            ask(three.open("site0"))


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint32])
def test_only_int32_is_summed(three, dtype):
    with pytest.raises(UserError, match="'x' to be summed is"):
        three.open("site0").masked(2, {"x": np.zeros(2, dtype=dtype)})


# --- files


def test_secrets_are_the_owners_alone(tmp_path):
    old = os.umask(0)
    try:
        consortium = Consortium(tmp_path, 3)
        consortium.total(0, numbers(consortium.names))
        site_identity(tmp_path / "site0" / "keys")
    finally:
        os.umask(old)
    files = [path for path in tmp_path.glob("**/*") if path.is_file()]
    assert {path.name for path in files} >= {"secret.json", "masked-0.json", "unmask-0.json", "identity.json"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*/secure-sums/*")} == {0o700}
    session = consortium.open("site0")
    assert repr(session.root) not in repr(session)


def test_a_closed_session_is_over(tmp_path):
    consortium = Consortium(tmp_path, 3)
    inputs = numbers(consortium.names)
    consortium.total(0, inputs)
    stale = consortium.open("site0")  # another process that is at work meanwhile
    assert len(stale.masked(0, inputs["site0"])) == 10
    consortium.open("site0").close()
    assert [path.name for path in consortium.secrets_of("site0").glob("*.json")] == ["closed.json"]
    with pytest.raises(UserError, match="session s1 is over at client 'site0'"):
        consortium.open("site0")
    with pytest.raises(UserError, match="session s1 is over"):
        stale.masked(0, inputs["site1"])


KILLED = """
import os, signal, sys
import numpy as np
from cofal.privacy.secure_sum import Session, envelope, masks
die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
masks.mask = envelope.close = die  # the first thing done after the record is written
session = Session.start(sys.argv[1], "s1", "site0")
session.{}
"""


@pytest.mark.parametrize("step", ["masked", "unmask"])
def test_a_killed_answer_is_on_record(tmp_path, step):
    """Killed between the record and the answer, a client answers the same request and refuses another."""
    consortium = Consortium(tmp_path, 3)
    inputs = {name: {"x": np.full(4, 7, dtype=np.int32)} for name in consortium.names}
    if step == "unmask":
        consortium.masked(0, inputs)
    call = {
        "masked": 'masked(0, {"x": np.full(4, 7, dtype=np.int32)})',
        "unmask": 'unmask(0, ["site0", "site1", "site2"])',
    }[step]
    done = subprocess.run([sys.executable, "-c", KILLED.format(call), tmp_path / "site0"], check=False)
    assert done.returncode == -signal.SIGKILL
    session = consortium.open("site0")
    other = {"masked": {"x": np.full(4, 8, dtype=np.int32)}, "unmask": ["site0", "site1"]}[step]
    with pytest.raises(UserError, match="has already"):
        getattr(session, step)(0, other)
    assert same(consortium.total(0, inputs), plain_total(inputs))


def test_noise_of_a_question_is_the_same_in_every_process():
    one, other = bytes(32), bytes([1] * 32)
    first, again, later = (masks.byte_source(masks.derive(one, "counts", r)) for r in (3, 3, 4))
    drawn = [first(10), first(10)]
    assert [again(10), again(10)] == drawn
    assert len({*drawn, later(10), masks.byte_source(masks.derive(other, "counts", 3))(10)}) == 4
