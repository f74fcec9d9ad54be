"""The gate of a site: what its policy forbids does not leave, what leaves is in the ledger first."""

import math
import resource

import numpy as np
import pytest
from flwr.app import Message
from typer.testing import CliRunner

from cofal.cli import app as cli
from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation import models
from cofal.federation.client_app import app
from cofal.federation.embedded import prepare, run_embedded
from cofal.federation.fleet import _reasons
from cofal.federation.gate import GatedApp
from cofal.federation.grid import InProcessGrid
from cofal.federation.site import open_site
from cofal.federation.site_settings import SiteSettings, create_site, read_settings
from cofal.files import read_json
from cofal.learning.state import encoder_digest, state_to_arrays
from cofal.privacy.ledger import FILE, read_ledger
from cofal.privacy.policy import ALWAYS, Kind, Policy
from cofal.report.egress import egress, ledger_account
from cofal.report.facts import Facts
from cofal.rng import torch_generator
from cofal.rundir import RunDir

FROZEN = "frozen_pixels:encode"
DIGEST = models.frozen_digest(FROZEN)
EMBED = {"digest": DIGEST, "model": m.to_json({"kind": "frozen"}), "share": "raw", "epsilon": 0.0, "seed": 3}
NOISED = {**EMBED, "share": "perturbed", "epsilon": 0.6}
DEPLOYED = Policy(allow=["perturbed", "model"], min_epsilon=0.5)


class Client:
    """One real site behind the real app and the embedded engine's grid."""

    def __init__(self, folder, policy):
        self.folder = folder
        pixels = np.random.default_rng(0).integers(0, 255, (30, 8, 8, 1)).astype(np.uint8)
        ImageSet.of(pixels, [f"scan-{row}" for row in range(30)], np.arange(30) % 2, ["no", "yes"]).save(
            folder / "images"
        )
        create_site(folder, SiteSettings(name="north", images="images", frozen=FROZEN, policy=policy))
        self.grid = InProcessGrid(app, {2: {"site": str(folder)}})

    def ask(self, kind, config=None, arrays=None):
        content = m.pack(config=config or {}, arrays=arrays)
        return self.grid.send_and_receive([Message(content, dst_node_id=2, message_type=kind)])[0]

    @property
    def last(self):
        reading = read_ledger(self.folder / FILE)
        assert reading.broken == ""
        return reading.entries[-1]

    def refuses(self, words, kind, config, arrays=None):
        """Ask, expect a refusal that holds `words`, and the same refusal in the ledger."""
        reply = self.ask(kind, config, arrays)
        assert reply.has_error(), "the request was answered"
        assert reply.error.code == m.REFUSED, reply.error.reason
        assert words in reply.error.reason
        assert "\n" not in reply.error.reason
        assert (self.last["refused"], self.last["bytes"], self.last["fields"]) == (reply.error.reason, 0, [])


@pytest.fixture
def client(tmp_path):
    return lambda policy=None, name="north": Client(tmp_path / name, policy or Policy())


# --- the gate


def test_every_message_type_has_a_handler_that_declares_what_it_sends():
    types = {value for name, value in vars(m).items() if isinstance(value, str) and value.startswith("query.")}
    assert {m.TRAIN, m.EVALUATE} | types == set(app.handlers)
    assert not app._registered_funcs, "a handler registered past the gate"


def test_a_handler_without_a_declaration_cannot_be_registered():
    with pytest.raises(TypeError, match="sends"):
        GatedApp().answers("query.secret")


def test_a_handler_registered_past_the_gate_is_never_called(client):
    ours = GatedApp()

    @ours.query("secret")
    def secret(message, context):
        raise AssertionError("called")

    north = client()
    north.grid = InProcessGrid(ours, {2: {"site": str(north.folder)}})
    north.refuses("query.secret", "query.secret", {})


def test_an_aggregate_only_site_refuses_raw_embeddings_before_any_work(client):
    north = client(Policy(allow=["aggregate", "model"]))
    north.refuses("its policy.allow is aggregate, model", m.EMBED, EMBED)
    assert (north.last["kind"], north.last["phase"]) == ("raw", "query.embed")
    assert not (north.folder / "embeddings").exists()
    north.refuses("policy.allow", m.EMBED, NOISED)
    north.refuses("policy.allow", m.PICK, {"digest": DIGEST})
    reply = north.ask(m.EMBED, {**EMBED, "share": "none"})
    assert not m.arrays_of(reply.content)
    assert m.config_of(reply.content) == {"ids": [], "known": []}  # no name of a sample either
    assert north.last["kind"] == "description"


def test_what_leaves_is_in_the_ledger_field_by_field(client):
    north = client(Policy(allow=["raw"]))
    reply = north.ask(m.EMBED, EMBED)
    assert m.kind_of(reply) == north.last["kind"] == "raw"
    assert north.last["bytes"] == m.content_bytes(reply) == sum(field["bytes"] for field in north.last["fields"])
    fields = {field["name"]: field for field in north.last["fields"]}
    assert (fields["embeddings"]["dtype"], fields["embeddings"]["shape"]) == ("float32", [30, 64])
    assert (fields["ids"]["dtype"], fields["ids"]["shape"]) == ("str", [30])
    assert north.last["parameters"]["digest"] == DIGEST


@pytest.mark.parametrize("fault", ["a folder in its place", "a full disk"])
def test_what_cannot_be_recorded_is_not_sent(client, fault):
    north = client(Policy(allow=["raw"]))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if fault == "a full disk":
        north.ask(m.EMBED, EMBED)  # so that no other file has to be written
        resource.setrlimit(resource.RLIMIT_FSIZE, ((north.folder / FILE).stat().st_size + 20, hard))
    else:
        (north.folder / FILE).mkdir()
    try:
        reply = north.ask(m.EMBED, EMBED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert reply.has_error()
    assert not reply.has_content()
    assert "sends nothing" in reply.error.reason
    assert str(north.folder) not in reply.error.reason
    if fault == "a full disk":
        assert north.ask(m.EMBED, EMBED).has_content()
        assert north.last["number"] == 2


# --- hostile requests


@pytest.mark.parametrize(
    ("words", "kind", "request_"),
    [
        ("finite", m.EMBED, {**NOISED, "epsilon": math.nan}),
        ("finite", m.EMBED, {**NOISED, "epsilon": math.inf}),
        ("finite", m.EMBED, {**NOISED, "epsilon": "0.6"}),
        ("finite", m.EMBED, {**NOISED, "epsilon": [0.6]}),
        ("-0.6", m.EMBED, {**NOISED, "epsilon": -0.6}),
        ("1e+30", m.EMBED, {**NOISED, "epsilon": 1e30}),
        ("min_epsilon", m.EMBED, {**NOISED, "epsilon": 0.4}),
        ("min_epsilon", m.EMBED, {**NOISED, "epsilon": 1e-300}),
        ("refuses to send raw", m.EMBED, {**NOISED, "epsilon": 0.0}),
        ("refuses to send raw", m.EMBED, {**NOISED, "epsilon": -0.0}),
        ("mechanism", m.EMBED, {**NOISED, "mechanism": "none"}),
        ("'all'", m.EMBED, {**EMBED, "share": "all"}),
        ("lacks 'share'", m.EMBED, {}),
        ("lacks 'epsilon'", m.EMBED, {"share": "perturbed"}),
        ("lacks 'digest'", m.EMBED, {"share": "perturbed", "epsilon": 0.6}),
        ("not allowed", m.EMBED, {**NOISED, "digest": "../images/images"}),
        ("not allowed", m.EMBED, {**NOISED, "digest": "x" * 10_000}),
        ("another public encoder", m.EMBED, {**NOISED, "digest": "abcd"}),
        ("knows no request", "query.nonsense", {}),
        ("knows no request", "reconnect", {}),
        ("knows no request", "query." + "q" * 10_000, {}),
        ("lacks 'job'", m.TRAIN, {}),
        ("lacks 'asked'", m.PICK, {}),
    ],
)
def test_a_hostile_request_gets_a_refusal_and_a_line_in_the_ledger(client, words, kind, request_):
    north = client(DEPLOYED)
    north.refuses(words, kind, request_)
    assert len(str(north.last)) < 2000
    assert not (north.folder / "perturbed").exists()


def test_an_unforeseen_failure_tells_the_server_no_more_than_its_type(client, caplog):
    north = client(DEPLOYED)
    reply = north.ask(m.EMBED, {**NOISED, "model": "{broken"})
    assert reply.error.code == m.CLIENT_RAISED
    assert reply.error.reason == "JSONDecodeError; the site's own log has the details"
    assert north.last["refused"] == reply.error.reason
    assert "Expecting" in caplog.text  # the whole story stays at the site


def test_weights_under_a_foreign_digest_are_refused(client):
    """Noise is kept by digest: a server that names the same encoder differently each time would get fresh noise."""
    description = models.encoder_model("resnet-tiny", 1)
    weights = state_to_arrays(models.build(description, torch_generator(0, "test")))
    north = client(DEPLOYED)
    request_ = {**NOISED, "model": m.to_json(description)}
    north.refuses("not that of the weights", m.EMBED, {**request_, "digest": "00"}, weights)
    reply = north.ask(m.EMBED, {**request_, "digest": encoder_digest(weights)[:16]}, weights)
    assert m.kind_of(reply) == "perturbed"


# --- noise


def embeddings_of(reply):
    return m.arrays_of(reply.content)["embeddings"]


def test_a_deployed_site_takes_its_noise_from_the_system_and_sends_it_once(client):
    north = client(DEPLOYED)
    first = embeddings_of(north.ask(m.EMBED, NOISED))
    assert north.last["kind"] == "perturbed"
    assert north.last["parameters"] == {
        "digest": DIGEST, "epsilon": 0.6, "mechanism": "tangent", "noise": "operating system", "again": False,
    }  # fmt: skip
    again = embeddings_of(north.ask(m.EMBED, {**NOISED, "seed": 4}))
    assert np.array_equal(again, first)
    assert north.last["parameters"]["again"] is True
    twin = client(DEPLOYED, "twin")  # the same data, name and request: other noise
    assert not np.allclose(embeddings_of(twin.ask(m.EMBED, NOISED)), first)
    north.refuses("policy.max_releases", m.EMBED, {**NOISED, "epsilon": 0.7})
    assert (north.last["kind"], north.last["parameters"]["epsilon"]) == ("perturbed", 0.7)


def test_an_experiment_s_noise_is_that_of_its_seed(client):
    policy = Policy(allow=["perturbed"], min_epsilon=0.6, reproducible_noise=True)
    north, twin = client(policy), client(policy, "twin")
    assert np.array_equal(embeddings_of(north.ask(m.EMBED, NOISED)), embeddings_of(twin.ask(m.EMBED, NOISED)))
    assert north.last["parameters"]["noise"] == "seed of the request"
    unseeded = {key: value for key, value in NOISED.items() if key != "seed"}
    other = client(policy, "other")
    assert not np.allclose(embeddings_of(other.ask(m.EMBED, unseeded)), embeddings_of(north.ask(m.EMBED, NOISED)))
    assert other.last["parameters"]["noise"] == "operating system"


@pytest.mark.parametrize("seeded", [True, False])
def test_the_table_of_what_left_says_where_noise_came_from(client, seeded):
    north = client(Policy(allow=["perturbed"], min_epsilon=0.6, reproducible_noise=seeded))
    for _ in range(2):
        assert not north.ask(m.EMBED, NOISED).has_error()
    source = "seed of the request" if seeded else "operating system"
    account = ledger_account(read_ledger(north.folder / FILE))
    assert account["noise"] == [{"epsilon": 0.6, "mechanism": "tangent", "noise": source, "messages": 2}]
    shown = CliRunner().invoke(cli, ["client", "ledger", str(north.folder)])
    assert f"Noise: tangent, epsilon 0.6, from the {source}" in shown.stdout
    assert ("can take the noise off" in shown.stdout) == seeded
    assert "Not sent: nothing was refused" in shown.stdout


def test_one_reason_of_several_sites_is_said_once():
    said = {name: f"site {name} refuses: it may not" for name in ("a", "b")} | {"c": "site c is away"}
    assert _reasons(said) == "a, b: the site refuses: it may not; c: site c is away"


# --- whole runs


FAST = ("train.rounds=2", "pretrain.rounds=1", "selection.budgets=[6]")


@pytest.mark.parametrize(
    ("overrides", "allowed", "min_epsilon"),
    [
        ((), set(Kind), 0.0),
        (("selection.epsilon=0.6",), {Kind.PERTURBED, Kind.IDS, Kind.MODEL}, 0.6),
        (('selection.coordination=["per-client"]',), {Kind.IDS, Kind.MODEL}, 0.0),
        (('selection.methods=["random"]',), {Kind.IDS, Kind.MODEL}, 0.0),
        (
            ('selection.coordination=["aggregate"]', 'selection.methods=["maxherding"]'),
            {Kind.AGGREGATE, Kind.SECURE_SUM, Kind.MODEL},
            0.0,
        ),
    ],
)
def test_a_simulated_site_allows_what_its_run_needs_and_no_more(
    small, tmp_path, cache, overrides, allowed, min_epsilon
):
    run = RunDir(tmp_path / "run")
    prepare(small(*overrides), run, cache)
    policy = open_site(run.sites / "site-0").settings.policy
    assert policy.allowed == allowed | ALWAYS
    assert (policy.min_epsilon, policy.reproducible_noise) == (min_epsilon, True)


def test_the_sites_ledgers_and_the_server_s_count_are_one_account(small, tmp_path, cache):
    run = run_embedded(small(*FAST, "train.evaluate=clients"), tmp_path / "run", cache)
    seen: dict[str, dict[str, list[int]]] = {}
    for counted in read_json(run.info)["traffic"].values():
        for site, kinds in counted["left"].items():
            for kind, each in kinds.items():
                total = seen.setdefault(site, {}).setdefault(kind, [0, 0])
                total[0] += each["messages"]
                total[1] += each["up"]
        assert counted["up"] == sum(each["up"] for kinds in counted["left"].values() for each in kinds.values())
        assert counted["down"] == sum(each["down"] for kinds in counted["left"].values() for each in kinds.values())
    for site, kinds in seen.items():
        reading = read_ledger(run.sites / site / FILE)
        assert reading.broken == ""
        recorded: dict[str, list[int]] = {}
        for entry in reading.entries:
            total = recorded.setdefault(entry["kind"], [0, 0])
            total[0] += 1
            total[1] += entry["bytes"]
        assert recorded == kinds
    assert set(seen) == {"site-0", "site-1", "site-2"}
    section = egress(Facts(run))
    assert section["most"]["kind"] == "raw"
    embedding = next(row for row in section["rows"] if row["kind"] == "raw")
    assert (embedding["phase"], embedding["messages"]) == ("Phase II: embedding", 3)
    assert embedding["up"].startswith("3\u00a0×\u00a0")
    assert [site for site, *_ in section["sites"]] == ["site-0", "site-1", "site-2"]


def test_a_run_that_asks_for_more_than_a_site_allows_ends_with_the_site_s_reason(small, tmp_path, cache):
    config, run = small(*FAST), RunDir(tmp_path / "run")
    run.path.mkdir()
    run.open(config)
    prepare(config, run, cache)
    site = run.sites / "site-1"
    create_site(site, read_settings(site).model_copy(update={"policy": Policy()}))
    with pytest.raises(UserError, match=r"site-1 refuses to send raw.*policy\.allow"):
        run_embedded(config, run.path, cache)
    last = read_ledger(run.sites / "site-1" / FILE).entries[-1]
    assert (last["kind"], "policy.allow" in last["refused"]) == ("raw", True)
