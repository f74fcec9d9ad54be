"""A run under `auto`: the same picks as `cofal.select` on the same embeddings, and the decision on record."""

import numpy as np

import cofal
from cofal.federation.embedded import run_embedded
from cofal.federation.phases.selecting import selection_seed
from cofal.federation.site import open_site
from cofal.files import read_json
from cofal.report.facts import Facts


def test_a_run_under_auto_picks_as_the_call_does_and_keeps_what_was_measured(small, tmp_path, cache):
    config = small('selection.coordination=["auto"]', 'selection.methods=["maxherding"]', "selection.budgets=[9]")
    run = run_embedded(config, tmp_path / "out", cache)
    (step,) = read_json(run.picks("maxherding-auto"))["steps"]
    sites = [open_site(run.sites / f"site-{k}") for k in range(3)]
    digest = read_json(run.info)["encoder"]
    embeddings = [np.array(site.embeddings(digest)) for site in sites]
    picks = cofal.select(embeddings, [3, 3, 3], coordination="auto", seed=selection_seed(config, 9))
    ids = [(sites[client].name, sites[client].train.ids[row]) for client, row in picks.order]
    assert [(pick["client"], pick["id"]) for pick in step["picks"]] == ids
    assert step["auto"] == {
        "sites": [site.name for site in sites], "told": picks.decision.in_words(), **picks.decision.as_dict()
    }  # fmt: skip
    assert Facts(run).likeness == picks.decision.in_words()
