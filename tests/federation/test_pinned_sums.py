"""Pinned identities over whole runs: a server that lies about who sums is refused, and the ledger says so."""

import shutil
from contextlib import suppress

import pytest

from cofal.config import load
from cofal.errors import CofalError, UserError
from cofal.federation import embedded
from cofal.federation import messages as m
from cofal.federation.embedded import prepare, run_embedded
from cofal.federation.grid import InProcessGrid
from cofal.federation.site_settings import create_site, read_settings
from cofal.files import read_json
from cofal.privacy.ledger import FILE, read_ledger
from cofal.privacy.secure_sum import Session, public_identity, site_identity
from cofal.rundir import RunDir
from small_run import SMALL

SITES = ("site-0", "site-1", "site-2")
CONFIG = [
    *SMALL,
    "pretrain.rounds=1",
    "train.rounds=1",
    "selection.budgets=[6]",
    'selection.methods=["typiclust"]',
    'selection.coordination=["aggregate"]',
    "selection.secure_sums=true",
]
TRACK = "typiclust-aggregate"


def pin(run, site, names=SITES):
    """Name to `site` those others of `names`, as they print their identity."""
    peers = {name: public_identity(site_identity(run.sites / name)).hex() for name in names if name != site}
    create_site(run.sites / site, read_settings(run.sites / site).model_copy(update={"peers": peers}))


@pytest.fixture(scope="module")
def honest(tmp_path_factory, cache):
    """A finished run in which every site has pinned the two others."""
    run, config = RunDir(tmp_path_factory.mktemp("pinned") / "run"), load("digits", CONFIG)
    run.path.mkdir()
    run.open(config)
    prepare(config, run, cache)
    for site in SITES:
        pin(run, site)
    return run_embedded(config, run.path, cache)


def asked_at(run):
    return {site: read_json(run.sites / site / "asked" / f"{TRACK}.json") for site in SITES}


def lines_of(run, site, phase):
    reading = read_ledger(run.sites / site / FILE)
    assert reading.broken == ""
    return [entry for entry in reading.entries if entry["phase"] == phase]


class Between(InProcessGrid):
    """A server that changes the list of clients which site-1 (node 3) is told, or the key that site-1 gave."""

    lie = ""

    def _deliver(self, message):
        told = m.config_of(message.content)
        if (message.metadata.message_type, message.metadata.dst_node_id) == (m.SUM_SHARES, 3):
            message.content = m.with_config(message.content, **self.listed(told))
        reply = super()._deliver(message)
        unsigned = self.lie == "site-1 does not sign"
        if unsigned and (message.metadata.message_type, message.metadata.dst_node_id) == (m.SUM_KEYS, 3):
            reply.content = m.with_config(reply.content, key=m.config_of(reply.content)["key"][:32])
        return reply

    def listed(self, told):
        keys = dict(zip(told["names"], told["keys"]))
        if self.lie == "a client is invented":
            keys["site-3"] = self.forged(told["session"], "site-3")
        if self.lie == "a key is replaced":
            keys["site-0"] = self.forged(told["session"], "site-0")
        if self.lie == "a signature is taken off":
            keys["site-0"] = keys["site-0"][:32]
        return {"names": list(keys), "keys": list(keys.values())}

    def forged(self, session, name):
        return Session.start(self.own / name, session, name, signer=site_identity(self.own / name)).keys()


def select_again(honest, folder, cache, monkeypatch, lie, prepared=lambda run: None):
    """The honest run's selection once more, with a server that lies."""
    run = RunDir(folder / "run")
    shutil.copytree(honest.path, run.path)
    run.picks(TRACK).unlink()
    run.cell(TRACK, 6).unlink()
    run.results.unlink()
    prepared(run)
    monkeypatch.setattr(Between, "lie", lie)
    monkeypatch.setattr(Between, "own", folder / "server", raising=False)
    monkeypatch.setattr(embedded, "InProcessGrid", Between)
    return run, lambda: run_embedded(load("digits", CONFIG), run.path, cache)


def unpin(run):
    for site in SITES:
        pin(run, site, names=())


LIES = [
    ("a client is invented", "'site-3' is not among the pinned peers"),
    ("a key is replaced", "'site-0' has a wrong signature"),
    ("a signature is taken off", "'site-0' is not signed"),
]


@pytest.mark.parametrize(("lie", "words"), LIES)
def test_a_server_that_lies_about_who_sums_is_refused_and_the_ledger_says_so(
    honest, tmp_path, cache, monkeypatch, lie, words
):
    run, again = select_again(honest, tmp_path, cache, monkeypatch, lie)
    sums = len([line for line in lines_of(run, "site-1", m.AGGREGATE) if line["kind"] == "secure-sum"])
    with pytest.raises(UserError, match=rf"1 of 3 sites failed: site-1: .*{words}"):
        again()
    last = lines_of(run, "site-1", m.SUM_SHARES)[-1]
    assert (last["kind"], last["bytes"]) == ("secure-sum", 0)
    assert words in last["refused"]
    assert "\n" not in last["refused"]
    assert len([line for line in lines_of(run, "site-1", m.AGGREGATE) if line["kind"] == "secure-sum"]) == sums


@pytest.mark.parametrize("lie", [lie for lie, _ in LIES])
def test_a_site_that_pins_nobody_takes_the_server_s_word(honest, tmp_path, cache, monkeypatch, lie):
    """What docs/secure-sums.md warns of; that the run then fails, or not, is up to the server."""
    run, again = select_again(honest, tmp_path, cache, monkeypatch, lie, unpin)
    before = len(lines_of(run, "site-1", m.SUM_SHARES))
    with suppress(CofalError):
        again()
    added = lines_of(run, "site-1", m.SUM_SHARES)[before:]
    assert added
    assert not any("refused" in line for line in added)


def test_an_honest_server_s_sums_are_the_same_with_and_without_pins(honest, tmp_path, cache, monkeypatch):
    run, again = select_again(honest, tmp_path, cache, monkeypatch, "", unpin)
    again()
    assert asked_at(run) == asked_at(honest)
    # 3 + 96 bytes of a signed key, in both
    for each in (honest, run):
        fields = [field for field in lines_of(each, "site-0", m.SUM_KEYS)[-1]["fields"] if field["name"] == "key"]
        assert [field["bytes"] for field in fields] == [99]


def test_a_site_of_an_earlier_version_that_does_not_sign_sums_with_those_that_pin_nobody(
    honest, tmp_path, cache, monkeypatch
):
    run, again = select_again(honest, tmp_path, cache, monkeypatch, "site-1 does not sign", unpin)
    again()
    assert asked_at(run) == asked_at(honest)
    pinned, again = select_again(
        honest, tmp_path / "pinned", cache, monkeypatch, "site-1 does not sign",
        lambda run: (unpin(run), pin(run, "site-2")),
    )  # fmt: skip
    with pytest.raises(UserError, match="1 of 3 sites failed: site-2: the key of client 'site-1' is not signed"):
        again()
    assert "is not signed" in lines_of(pinned, "site-2", m.SUM_SHARES)[-1]["refused"]


def test_a_site_that_is_not_pinned_is_refused_by_name(honest, tmp_path, cache, monkeypatch):
    _, again = select_again(
        honest, tmp_path, cache, monkeypatch, "", lambda run: pin(run, "site-0", names=("site-0", "site-1"))
    )
    with pytest.raises(UserError, match=r"site-0: client 'site-2' is not among the pinned peers; add .*\[peers\]"):
        again()
