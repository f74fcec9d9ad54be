"""Sites that answer with rubbish, or with what looks right and is not, as real processes."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cofal.config import to_toml
from cofal.deploy.server_folder import deployment_config
from cofal.rundir import RunDir
from faulty_federation import Faulty, undisturbed
from running_federation import SMALL, Running

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

TESTS = Path(__file__).parent.parent


def test_rubbish_is_rejected_by_name_and_the_model_is_that_of_the_others(make_federation, tmp_path):
    rounds = 6  # as many as the hostile site has kinds of rubbish
    made = make_federation(
        per_site=30, overrides=["engine.min_clients=2", "engine.timeout=20", f"pretrain.rounds={rounds}"]
    )
    hostile = made.names[1]
    honest = [name for name in made.names if name != hostile]
    expected = undisturbed(made, ["pretrain"], tmp_path / "peace", honest)
    made.sites[hostile] = Running(
        made.sites[hostile].arguments, made.sites[hostile].log, env={"PYTHONPATH": str(TESTS / "hostile_site")}
    )
    made.start()
    lines = made.run("pretrain")
    assert Faulty(made).outcome()["encoder"] == expected["encoder"]
    assert made.sites[hostile].said("sending rubbish") == rounds
    told = [line for line in lines if line.startswith(f"going on without {hostile}: ")]
    assert len(told) == rounds
    for line, why in zip(told, ["Error", "not float32", "NaN", "norm", "Error", "no answer"]):
        assert why in line


@pytest.mark.parametrize(
    "strategy",
    [
        ["fedavg"],
        ["fedmedian"],
        ["fedtrimmedavg", "pretrain.strategy_options.beta=0.34"],
        ["krum", "pretrain.strategy_options.num_malicious_nodes=1"],
    ],
    ids=lambda strategy: strategy[0],
)
def test_what_no_check_can_find_is_outvoted(make_federation, tmp_path, strategy):
    """A site adds a tenth to every weight: only a robust strategy keeps it out of the model."""
    made = make_federation(per_site=30, overrides=["pretrain.rounds=1"])
    hostile = made.names[1]
    honest = []
    for name in made.names:
        if name != hostile:  # the model of one site alone is what it answers
            undisturbed(made, ["pretrain"], tmp_path / name, [name])
            honest.append(load_file(RunDir(tmp_path / name).encoder))
    name, *options = strategy
    overrides = ["pretrain.rounds=1", f"pretrain.strategy={name}", *options]
    made.folder.config.write_text(to_toml(deployment_config("digits-deployment", [*SMALL, *overrides])))
    made.sites[hostile] = Running(
        made.sites[hostile].arguments,
        made.sites[hostile].log,
        env={"PYTHONPATH": str(TESTS / "hostile_site"), "COFAL_TEST_RUBBISH": "poison"},
    )
    made.start()
    made.run("pretrain")
    assert made.sites[hostile].said("sending rubbish: poison") == 1
    agreed = load_file(RunDir(made.folder.path).encoder)
    between = all(
        ((array >= np.minimum(*each)) & (array <= np.maximum(*each))).all()
        for array, each in ((agreed[key], [state[key] for state in honest]) for key in agreed)
    )
    assert between == (name != "fedavg")
