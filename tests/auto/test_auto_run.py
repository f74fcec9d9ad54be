"""A run under `auto`: the same picks as `cofal.select` on the same embeddings, and the decision on record."""

import json

import numpy as np
import pytest

import cofal
from cofal.errors import UserError
from cofal.federation.embedded import run_embedded
from cofal.federation.phases.selecting import selection_seed
from cofal.federation.site import open_site
from cofal.files import read_json
from cofal.report.facts import Facts
from cofal.selection import auto, auto_aggregate
from cofal.selection.shares import divide
from cofal.selection.worth import worth

AUTO = [
    'selection.coordination=["auto"]', 'selection.methods=["maxherding"]', "selection.budgets=[9]",
    "pretrain.rounds=1", "train.rounds=1",
]  # fmt: skip


def sites_of(run):
    """The sites of a run and their embeddings."""
    sites = [open_site(folder) for folder in sorted(run.sites.glob("site-*"))]
    digest = read_json(run.info)["encoder"]
    return sites, [np.array(site.embeddings(digest)) for site in sites]


def ledger_decisions(run, site):
    """What the ledger of a site says of decisions."""
    lines = (run.sites / site / "ledger.jsonl").read_text().splitlines()
    told = [json.loads(line)["parameters"].get("decision") for line in lines]
    return {each for each in told if each}


def test_a_run_under_auto_picks_as_the_call_does_and_keeps_what_was_measured(small, tmp_path, cache):
    config = small(*AUTO)
    run = run_embedded(config, tmp_path / "out", cache)
    (step,) = read_json(run.picks("maxherding-auto"))["steps"]
    sites, embeddings = sites_of(run)
    picks = cofal.select(embeddings, [3, 3, 3], coordination="auto", seed=selection_seed(config, 9))
    ids = [(sites[client].name, sites[client].train.ids[row]) for client, row in picks.order]
    assert [(pick["client"], pick["id"]) for pick in step["picks"]] == ids
    assert step["auto"] == {
        "sites": [site.name for site in sites], "told": picks.decision.in_words(), **picks.decision.as_dict()
    }  # fmt: skip
    assert Facts(run).likeness == picks.decision.in_words()
    assert ledger_decisions(run, "site-1") == {picks.decision.in_words()}


@pytest.mark.parametrize("kind", ["central", "per-client"])
def test_from_aggregates_no_embedding_leaves_and_the_picks_are_those_of_the_call(
    small, tmp_path, cache, monkeypatch, kind
):
    if kind == "per-client":  # so that these clients, which are one source, choose alone
        monkeypatch.setattr(auto_aggregate, "LEAST", 2.0)
        monkeypatch.setattr(auto, "ONE_SOURCE", 2.0)
    config = small(*AUTO, 'selection.sharing="aggregates"', "clients.split=iid")
    run = run_embedded(config, tmp_path / "out", cache)
    assert read_json(run.info)["share"] == "none"
    (step,) = read_json(run.picks("maxherding-auto"))["steps"]
    sites, embeddings = sites_of(run)
    seed = selection_seed(config, 9)
    picks = cofal.select(embeddings, [3, 3, 3], coordination="auto", sharing="aggregates", seed=seed, min_region=5)
    assert picks.decision.kind == step["auto"]["decision"] == kind
    assert [pick["client"] for pick in step["picks"]] == [sites[client].name for client, _ in picks.order]
    assert all("id" not in pick for pick in step["picks"])
    for site, rows in zip(sites, picks.indices):
        assert site.asked("maxherding-auto") == [site.train.ids[row] for row in rows]
        assert ledger_decisions(run, site.name) == {picks.decision.in_words()}
    kinds = {json.loads(line)["kind"] for line in (run.sites / "site-0" / "ledger.jsonl").read_text().splitlines()}
    assert not kinds & {"raw", "perturbed", "ids"}
    assert Facts(run).likeness == picks.decision.in_words()


@pytest.mark.parametrize("sharing", ["embeddings", "aggregates"])
def test_shares_by_worth_give_labels_to_whoever_holds_variety(small, tmp_path, cache, sharing):
    alike = ["clients.split=dirichlet", "clients.alpha=0.1", "selection.budgets=[24]"]
    config = small(*AUTO, *alike, f'selection.sharing="{sharing}"', 'selection.shares="auto"')
    run = run_embedded(config, tmp_path / "out", cache)
    (step,) = read_json(run.picks("maxherding-auto"))["steps"]
    shares = [sum(pick["client"] == f"site-{k}" for pick in step["picks"]) for k in range(3)]
    assert sum(shares) == 24
    if sharing == "embeddings":  # the division of the call with one total
        _, embeddings = sites_of(run)
        whole = cofal.select(embeddings, 24, coordination="auto", seed=config.seed)
        assert shares == [len(rows) for rows in whole.indices]


def test_worth_not_size_decides_the_shares():
    counts = np.array([[40, 0, 0, 0], [10, 10, 10, 10]])
    assert divide(10, worth(counts).tolist(), [40, 40]) == [2, 8]


def test_masked_sums_cannot_hide_what_auto_compares(small):
    with pytest.raises(UserError, match="secure_sums = true hides what auto compares"):
        small(*AUTO, 'selection.sharing="aggregates"', "selection.secure_sums=true")


def test_a_run_that_says_aggregates_shares_no_embedding(small):
    with pytest.raises(UserError, match="coordination = 'central' shares embeddings"):
        small('selection.sharing="aggregates"', 'selection.coordination=["central", "per-client"]')
