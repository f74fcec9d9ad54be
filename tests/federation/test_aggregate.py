"""Aggregate selection over messages: the picks of cofal.select, nothing of a single sample on the wire, masked sums."""

import hashlib
import json
import re
import shutil
import sys
from typing import ClassVar

import numpy as np
import pytest
from flwr.app import Error, Message

import cofal
from cofal.cli import main
from cofal.config import load
from cofal.errors import CofalError, UserError
from cofal.federation import embedded
from cofal.federation import messages as m
from cofal.federation.client_app import app
from cofal.federation.embedded import run_embedded
from cofal.federation.grid import InProcessGrid
from cofal.federation.holding import _question
from cofal.federation.site import open_site
from cofal.files import read_json, write_json
from cofal.privacy.answered import answered
from cofal.privacy.ledger import FILE, read_ledger
from cofal.report.facts import Facts
from cofal.report.page import render
from cofal.rng import generator
from cofal.rundir import RunDir
from cofal.selection.auto_aggregate import halves
from small_run import SMALL

METHODS = ("maxherding", "probcover", "typiclust")
# 83 samples a site: a number that no dimension of a model, a class list or an embedding (64) has by chance.
AGGREGATE = [
    *SMALL,
    "data.limit=249",
    "pretrain.rounds=1",
    "train.rounds=1",
    f'selection.methods=["{METHODS[0]}", "{METHODS[1]}", "{METHODS[2]}"]',
    'selection.coordination=["aggregate"]',
]
SAMPLES = 83


class Recorded(InProcessGrid):
    """Keeps every question and answer. `lost`: (message type, node) whose reply is lost once; if sums of the run are
    masked, a reply about those. `gone`: a node, and after how many messages its answers to questions are lost for good.
    """

    transcript: ClassVar[list] = []
    lost: ClassVar[set] = set()
    gone: ClassVar[tuple] = (None, 0)

    def may_be_lost(self, message):
        masked = any(kind == m.SUM_KEYS for kind, *_ in self.transcript)
        return not masked or message.metadata.message_type != m.AGGREGATE or "session" in m.config_of(message.content)

    def pull_messages(self, message_ids):
        kept = []
        for number in message_ids:
            message = self._pushed[number]
            (reply,) = super().pull_messages([number])
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            Recorded.transcript.append((kind, node, message.content, None if reply.has_error() else reply.content))
            gone = kind == m.AGGREGATE and node == self.gone[0] and len(self.transcript) > self.gone[1]
            if gone or ((kind, node) in self.lost and self.may_be_lost(message)):
                self.lost.discard((kind, node))
                kept.append(Message(Error(0, "lost on its way"), reply_to=message))
            else:
                kept.append(reply)
        return kept


def run_recorded(folder, cache, *overrides, lost=(), gone=(None, 0)):
    """A finished run with the messages that crossed the line."""
    Recorded.transcript, Recorded.lost, Recorded.gone = [], set(lost), gone
    original, embedded.InProcessGrid = embedded.InProcessGrid, Recorded
    try:
        run = run_embedded(load("digits", [*AGGREGATE, *overrides]), folder, cache)
    finally:
        embedded.InProcessGrid = original
    return run, Recorded.transcript


@pytest.fixture(scope="module")
def finished(tmp_path_factory, cache):
    return run_recorded(tmp_path_factory.mktemp("aggregate") / "run", cache)


@pytest.fixture(scope="module")
def masked(tmp_path_factory, cache):
    return run_recorded(tmp_path_factory.mktemp("masked") / "run", cache, "selection.secure_sums=true")


def asked_at(run):
    return {
        (site.name, file.stem): read_json(file)
        for site in (open_site(run.sites / f"site-{k}") for k in range(3))
        for file in sorted((site.folder / "asked").glob("*.json"))
    }


def test_picks_are_those_of_cofal_select_on_the_sites_embeddings(finished):
    run, _ = finished
    sites = [open_site(run.sites / f"site-{k}") for k in range(3)]
    embeddings = [np.array(site.embeddings(read_json(run.info)["encoder"])) for site in sites]
    found = asked_at(run)
    for method in METHODS:
        params = {"delta": "auto"} if method == "probcover" else {}
        taken = [[], [], []]
        for budget in (6, 12):
            seed = int(generator(0, "select", budget).integers(2**31))
            chosen = cofal.select(
                embeddings, [2, 2, 2], method=method, coordination="aggregate", labeled=taken, seed=seed, **params
            )
            taken = [[*old, *new.tolist()] for old, new in zip(taken, chosen.indices)]
        for site, rows in zip(sites, taken):
            assert found[site.name, f"{method}-aggregate"] == [site.train.ids[row] for row in rows]
        steps = read_json(run.picks(f"{method}-aggregate"))["steps"]
        order = [pick["client"] for step in steps for pick in step["picks"]]
        assert [order.count(site.name) for site in sites] == [4, 4, 4]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("probcover", {"schedule": "paper", "min_region": 1}),
        ("typiclust", {"iterations": 2}),
        ("maxherding", {"shifts": 0, "lengthscale": 0.7}),
    ],
)
def test_a_run_sets_a_selector_as_its_configuration_says(method, params, tmp_path, cache):
    settings = [f"selection.{name}={json.dumps(value)}" for name, value in params.items()]
    only = [f'selection.methods=["{method}"]', "selection.budgets=[6]", *settings]
    run, transcript = run_recorded(tmp_path / "run", cache, *only)
    sites = [open_site(run.sites / f"site-{k}") for k in range(3)]
    embeddings = [np.array(site.embeddings(read_json(run.info)["encoder"])) for site in sites]
    seed = int(generator(0, "select", 6).integers(2**31))
    chosen = cofal.select(
        embeddings,
        [2, 2, 2],
        method,
        "aggregate",
        seed=seed,
        **({"delta": "auto"} if method == "probcover" else {}),
        **params,
    )
    for site, rows in zip(sites, chosen.indices):
        assert asked_at(run)[site.name, f"{method}-aggregate"] == [site.train.ids[row] for row in rows]
    plain = cofal.select(embeddings, [2, 2, 2], method, "aggregate", seed=seed)
    asked = sum(kind == m.AGGREGATE for kind, *_ in transcript) // 3
    assert asked == chosen.rounds != plain.rounds


def test_a_site_of_one_sample_chooses_with_the_others(tmp_path, cache, monkeypatch):
    """It cannot estimate a radius; its answer must be numbers all the same."""
    divide = embedded.partition

    def unevenly(*arguments, **settings):
        first, second, third = divide(*arguments, **settings)
        return [first, second, third[:1]]

    monkeypatch.setattr(embedded, "partition", unevenly)
    only = ["selection.methods=['probcover']", "selection.budgets=[3]"]
    run, _ = run_recorded(tmp_path / "run", cache, *only)
    sites = [open_site(run.sites / f"site-{k}") for k in range(3)]
    assert [len(site.train.ids) for site in sites] == [SAMPLES, SAMPLES, 1]
    embeddings = [np.array(site.embeddings(read_json(run.info)["encoder"])) for site in sites]
    seed = int(generator(0, "select", 3).integers(2**31))
    chosen = cofal.select(embeddings, [1, 1, 1], "probcover", "aggregate", seed=seed, delta="auto")
    for site, rows in zip(sites, chosen.indices):
        assert asked_at(run)[site.name, "probcover-aggregate"] == [site.train.ids[row] for row in rows]


def test_the_report_of_a_simulated_run_shows_the_picks_that_the_server_does_not_know(finished):
    run, _ = finished
    facts = Facts(run)
    for (method, kind), picks in facts.picks.items():
        assert kind == "aggregate"
        for client in ("site-0", "site-1", "site-2"):
            own = [pick.id for pick in picks if pick.client == client]
            assert own == asked_at(run)[client, f"{method}-aggregate"]
    assert "No embedding left a client" in render(facts)


def rows_of(array, dimensions):
    """The rows of an array that could be embeddings, at unit length."""
    if array.ndim != 2 or array.shape[1] != dimensions:
        return np.empty((0, dimensions))
    rows = array.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths == 0, 1, lengths))[lengths[:, 0] > 0]


@pytest.mark.parametrize("which", ["finished", "masked"])
def test_the_transcript_holds_no_embedding_and_no_list_of_samples(which, request):
    run, transcript = request.getfixturevalue(which)
    sites = {k + 2: open_site(run.sites / f"site-{k}") for k in range(3)}
    digest = read_json(run.info)["encoder"]
    ids = {sample for site in sites.values() for sample in site.train.ids}
    assert {len(site.train.ids) for site in sites.values()} == {SAMPLES}
    asked = set()
    for kind, node, _, reply in transcript:
        assert reply is not None
        asked.add(kind)
        own = np.array(sites[node].embeddings(digest)) if sites[node].has_embeddings(digest) else np.empty((0, 64))
        for name, array in m.arrays_of(reply).items():
            assert SAMPLES not in array.shape, (kind, name, array.shape)
            if kind != "train":  # weights are of the same width as embeddings
                for row in rows_of(array, own.shape[1]):
                    assert np.linalg.norm(own - row, axis=1).min() > 1e-3, (kind, name)
        for record in reply.config_records.values():
            for key, value in record.items():
                if isinstance(value, list):
                    assert len(value) < SAMPLES / 2, (kind, key)
                    assert not ids.intersection(map(str, value)), (kind, key)
                else:
                    assert not any(sample in str(value).split() for sample in ids), (kind, key)
    assert m.AGGREGATE in asked
    assert m.PICK not in asked


def test_sums_under_masks_give_the_same_picks(finished, masked):
    assert asked_at(finished[0]) == asked_at(masked[0])
    kinds = {kind for kind, *_ in masked[1]}
    assert {m.SUM_KEYS, m.SUM_SHARES, m.SUM_UNMASK, m.SUM_CLOSE} <= kinds
    sums = [m.arrays_of(reply) for kind, _, told, reply in masked[1] if "session" in m.config_of(told)]
    opened = [arrays for arrays in sums if arrays]
    assert opened
    assert all(set(arrays) == {"masked"} and arrays["masked"].dtype == np.uint64 for arrays in opened)
    assert not list(masked[0].sites.glob("*/secure-sums/*/secret.json"))  # forgotten at the end


@pytest.mark.parametrize("kind", ["query.aggregate", "query.unmask", "query.keys", "query.shares", "query.close"])
def test_a_site_lost_within_a_sum_does_not_stop_the_selection(tmp_path, cache, kind):
    run, _ = run_recorded(tmp_path / "run", cache, "selection.secure_sums=true", lost=[(kind, 3)])
    assert not Recorded.lost
    assert all(len(ids) == 4 for ids in asked_at(run).values())


def test_an_answer_lost_on_its_way_is_asked_for_once_more(finished, tmp_path, cache):
    run, _ = run_recorded(tmp_path / "run", cache, lost=[("query.aggregate", 3)])
    assert not Recorded.lost
    assert asked_at(run) == asked_at(finished[0])


def test_a_site_lost_for_good_ends_the_selection_and_the_run_goes_on_with_it(finished, tmp_path, cache):
    with pytest.raises(CofalError, match="1 of 3 sites failed: site-1: lost on its way; see to that, then run this ag"):
        run_recorded(tmp_path / "run", cache, gone=(3, 60))
    run, _ = run_recorded(tmp_path / "run", cache)
    assert asked_at(run) == asked_at(finished[0])


def test_a_selection_that_meets_the_limit_of_questions_goes_on_once_it_is_raised(finished, tmp_path, cache):
    """And what was asked before is not counted again."""
    with pytest.raises(CofalError):
        run_recorded(tmp_path / "run", cache, gone=(3, 60))
    settings = tmp_path / "run" / "sites" / "site-0" / "site.toml"
    allowed = settings.read_text()
    settings.write_text(re.sub("max_questions = [0-9]+", "max_questions = 12", allowed))
    with pytest.raises(UserError, match=r"site-0 has answered [0-9]+ different questions.*policy.max_questions allows"):
        run_recorded(tmp_path / "run", cache)
    settings.write_text(allowed)
    run, _ = run_recorded(tmp_path / "run", cache)
    assert asked_at(run) == asked_at(finished[0])
    assert answered(run.sites / "site-0") == answered(finished[0].sites / "site-0")


def test_two_sites_cannot_sum_in_secret(tmp_path, cache):
    with pytest.raises(UserError, match="at least 3 sites"):
        run_recorded(tmp_path / "run", cache, "selection.secure_sums=true", "clients.count=2")


@pytest.mark.parametrize("numbers", ['{"min_region": 1}', '{"min_region": 5, "exact": 1}'])
def test_a_site_tells_nothing_of_smaller_groups_than_its_policy_says(finished, numbers):
    """A distance to all digits is about one sample."""
    run, transcript = finished
    told = next(told for kind, _, told, _ in transcript if kind == m.AGGREGATE)
    content = m.pack(arrays=m.arrays_of(told), config={**m.config_of(told), "numbers": numbers})
    grid = InProcessGrid(app, {2: {"site": str(run.sites / "site-0")}})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=2, message_type=m.AGGREGATE)])
    assert reply.error.code == m.REFUSED
    assert "fewer than 5" in reply.error.reason


def assert_charged(run, transcript):
    """Of site-0: every count that left was charged for, and nothing else, in the order asked."""
    expected = []
    for kind, node, told, reply in transcript:
        if kind == m.AGGREGATE and node == 2:
            counts, answer = halves(str(m.config_of(told)["method"])).counts, m.arrays_of(reply)
            sizes = [(answer[name].size, partition) for name, partition in counts.items() if name in answer]
            expected.append(sum(min(1, size) if partition else size for size, partition in sizes))
    charged = read_json(run.sites / "site-0" / "privacy" / "spent.json")["answers"]
    assert [entry["times"] for entry in charged] == [times for times in expected if times]


def test_noise_on_counts_is_charged_and_the_spent_budget_ends_the_selection(tmp_path, cache):
    noise = [
        "selection.methods=['typiclust']",
        'selection.count_noise={mechanism="laplace", parameter=4.0, epsilon=40}',
    ]
    run, transcript = run_recorded(tmp_path / "enough", cache, *noise)
    assert all(len(ids) == 4 for ids in asked_at(run).values())
    spent = {site: read_json(run.sites / site / "privacy" / "spent.json") for site in ("site-0", "site-1", "site-2")}
    assert all(spent.values())
    assert_charged(run, transcript)
    told, reply = next((told, reply) for kind, node, told, reply in transcript if kind == m.AGGREGATE and node == 2)
    counts = m.arrays_of(reply)["counts"]
    assert ((counts == 0) | (counts >= 5)).all()
    grid = InProcessGrid(app, {2: {"site": str(run.sites / "site-0")}})
    (again,) = grid.send_and_receive([Message(told, dst_node_id=2, message_type=m.AGGREGATE)])
    for name, array in m.arrays_of(reply).items():  # the same question again: the same noise, and nothing charged
        np.testing.assert_array_equal(m.arrays_of(again.content)[name], array)
    assert read_json(run.sites / "site-0" / "privacy" / "spent.json") == spent["site-0"]
    with pytest.raises(UserError, match="privacy budget spent"):
        run_recorded(tmp_path / "short", cache, noise[0], noise[1].replace("epsilon=40", "epsilon=0.5"))


@pytest.mark.parametrize("secure", ["false", "true"])
def test_a_question_without_counts_costs_nothing(tmp_path, cache, secure):
    """ProbCover's first question has no balls to count in, and its last refinement neither."""
    noise = [
        "selection.methods=['probcover']",
        'selection.count_noise={mechanism="laplace", parameter=4.0, epsilon=1e6}',
        f"selection.secure_sums={secure}",
    ]
    run, transcript = run_recorded(tmp_path / "run", cache, *noise)
    assert all(len(ids) == 4 for ids in asked_at(run).values())
    charged = read_json(run.sites / "site-0" / "privacy" / "spent.json")["answers"]
    assert charged
    assert all(entry["times"] >= 1 for entry in charged)
    if secure == "false":  # under masks the counts cannot be seen
        assert_charged(run, transcript)


def test_a_question_in_another_form_or_of_other_samples_gets_noise_of_its_own():
    """Two answers with the same noise would tell their difference, and the second would cost nothing."""
    asked, config, pool, taken = {"centers": np.ones((2, 4), np.float32)}, {"kind": "sums"}, np.arange(5), np.zeros(5)
    same = _question(asked, config, pool, taken)
    assert same == _question(dict(asked), dict(config), pool.copy(), taken.copy())
    others = [
        _question({"centers": asked["centers"].reshape(1, 8)}, config, pool, taken),
        _question({"centers": asked["centers"].view(np.int32)}, config, pool, taken),
        _question({"center": asked["centers"]}, config, pool, taken),
        _question(asked, {"kind": "likeness"}, pool, taken),
        _question(asked, config, pool[1:], taken[1:]),
        _question(asked, config, pool, taken + 1),
    ]
    assert len({same, *others}) == 7


@pytest.mark.parametrize("steps", [0, 1])
def test_a_selection_lost_after_the_sites_took_note_is_repeated_with_the_same_picks(finished, tmp_path, cache, steps):
    """Killed between the sites' note and the server's: the sites' lists then hold picks that the server never saw."""
    run = RunDir(tmp_path / "run")
    shutil.copytree(finished[0].path, run.path)
    before, numbers = asked_at(run), [cell["accuracy"] for cell in read_json(run.results)]
    record = read_json(run.picks("typiclust-aggregate"))
    write_json(run.picks("typiclust-aggregate"), {**record, "steps": record["steps"][:steps]})
    for budget in (6, 12)[steps:]:
        run.cell("typiclust-aggregate", budget).unlink()
    run.results.unlink()
    again = run_embedded(load("digits", AGGREGATE), run.path, cache)
    assert asked_at(again) == before
    assert [cell["accuracy"] for cell in read_json(again.results)] == numbers


# --- what the ledger keeps of a question


def questions_at(run, site):
    return [entry for entry in read_ledger(run.sites / site / FILE).entries if entry["phase"] == m.AGGREGATE]


@pytest.mark.parametrize("which", ["finished", "masked"])
def test_the_ledger_holds_what_was_asked(which, request):
    run, transcript = request.getfixturevalue(which)
    asked = [told for kind, node, told, _ in transcript if (kind, node) == (m.AGGREGATE, 2)]
    lines = questions_at(run, "site-0")[: len(asked)]  # other tests ask the site more
    assert len(lines) == len(asked) > 10
    for told, line in zip(asked, lines):
        config, arrays, noted = m.config_of(told), m.arrays_of(told), line["parameters"]
        assert noted["numbers"] == json.loads(config["numbers"])
        for key in ("kind", "method", "asked", "budget", "session", "round"):
            assert noted.get(key) == config.get(key), key
        assert noted.get("arrays", {}) == {name: list(array.shape) for name, array in arrays.items()}
        if arrays:  # as an owner would compute it who has the question
            ordered = [[name, arrays[name].dtype.str, list(arrays[name].shape)] for name in sorted(arrays)]
            content = b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in sorted(arrays))
            listed = json.dumps(ordered, separators=(",", ":")).encode()
            assert noted["sha256"] == hashlib.sha256(listed + content).hexdigest()
    assert any(line["parameters"].get("arrays") for line in lines)


def test_an_unusual_question_is_seen_in_the_ledger(finished, monkeypatch, capsys):
    """The same question with another depth or other candidates: refused or answered, the owner can tell."""
    run, transcript = finished
    told = next(
        told for kind, _, told, _ in transcript if kind == m.AGGREGATE and m.config_of(told)["kind"] == "offers"
    )
    grid = InProcessGrid(app, {2: {"site": str(run.sites / "site-0")}})
    arrays = m.arrays_of(told)
    name = next(name for name, array in arrays.items() if array.size)
    nudged = {**arrays, name: np.nextafter(arrays[name], np.float32(2))}
    for numbers, sent in ((json.loads(m.config_of(told)["numbers"]), arrays), ({"depth": 99, "exact": 1}, arrays),
                          ({"depth": 99, "exact": 1}, nudged)):  # fmt: skip
        content = m.pack(arrays=sent, config={**m.config_of(told), "numbers": json.dumps(numbers)})
        grid.send_and_receive([Message(content, dst_node_id=2, message_type=m.AGGREGATE)])
    plain, deep, other = (line["parameters"] for line in questions_at(run, "site-0")[-3:])
    assert plain["numbers"] != deep["numbers"] == other["numbers"] == {"depth": 99, "exact": 1}
    assert plain["sha256"] == deep["sha256"] != other["sha256"]
    monkeypatch.setattr(sys, "argv", ["cofal", "client", "ledger", str(run.sites / "site-0"), "--asked"])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().out.splitlines()
    assert sum("depth 99, exact 1; " in line for line in shown) == 2
    assert max(map(len, (line for line in shown if "│" in line))) <= 80


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("JSON object of finite numbers", {"numbers": "[1]"}),
        ("JSON object of finite numbers", {"numbers": '{"depth": NaN}'}),
        ("JSON object of finite numbers", {"numbers": '{"depth": 1e999}'}),
        ("JSON object of finite numbers", {"numbers": '{"depth": "8"}'}),
        ("JSON object of finite numbers", {"numbers": "{"}),
        ("at most 1000", {"numbers": json.dumps({f"n{k}": k for k in range(200)})}),
        ("at most 1000", {"kind": "k" * 5000}),
    ],
)
def test_a_question_that_the_ledger_cannot_keep_whole_is_refused(finished, words, wrong):
    run, transcript = finished
    told = next(told for kind, _, told, _ in transcript if kind == m.AGGREGATE)
    content = m.pack(arrays=m.arrays_of(told), config={**m.config_of(told), **wrong})
    grid = InProcessGrid(app, {2: {"site": str(run.sites / "site-0")}})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=2, message_type=m.AGGREGATE)])
    assert reply.error.code == m.REFUSED
    assert words in reply.error.reason
    last = questions_at(run, "site-0")[-1]
    assert last["refused"] == reply.error.reason
    assert len(json.dumps(last)) < 1500
