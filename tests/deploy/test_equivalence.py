"""One pipeline, two engines: embedded in one process, and deployed over TLS. Same encoder, picks, accuracy, advice."""

import json
import shutil
import subprocess
import sys

import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file

from cofal.config import load, to_toml
from cofal.deploy.certificates import create_site_key
from cofal.deploy.enrolment import enrol
from cofal.federation.client_app import app as client_app
from cofal.federation.embedded import run_embedded
from cofal.federation.grid import InProcessGrid
from cofal.federation.orders import place_order
from cofal.federation.phases.advising import advice_file
from cofal.federation.server_app import app as server_app
from cofal.federation.site_settings import ServerLink, create_site, read_settings
from cofal.files import read_json
from cofal.learning.batches import one_thread
from cofal.learning.state import encoder_digest
from cofal.rundir import RunDir
from running_federation import Running
from small_run import SMALL

OPTIONS = [
    *SMALL,
    "pretrain.rounds=2",
    "pretrain.probe_every=0",
    'selection.coordination=["central", "per-client", "aggregate", "auto"]',
    'selection.methods=["maxherding"]',
    "selection.budgets=[12]",
    "train.rounds=12",
    "engine.timeout=120",
]


@pytest.mark.deploy
@pytest.mark.timeout(900)
def test_the_digits_pipeline_gives_the_same_embedded_and_deployed(tmp_path, cache, make_federation):
    config = load("digits", OPTIONS)
    with one_thread():  # as the sites below: the last bits of an encoder depend on the number of threads
        embedded = run_embedded(config, tmp_path / "embedded", cache)
    made = make_federation(sites=0)
    made.folder.config.write_text(to_toml(config))
    shutil.copytree(embedded.server / "test", made.folder.server / "test")
    for settings_file in sorted(embedded.sites.glob("*/site.toml")):
        name = settings_file.parent.name
        site = made.base / name
        site.mkdir()
        shutil.copyfile(settings_file.parent / "rows.npy", site / "rows.npy")
        link = ServerLink(address=f"localhost:{made.port}", ca=str(made.folder.authority))
        create_site(site, read_settings(settings_file.parent).model_copy(update={"server": link}))
        create_site_key(site / "site.key", site / "site.pub", name)
        enrol(made.folder.path, site / "site.pub", name)
        made.names.append(name)
        made.sites[name] = Running(["client", "up", str(site)], made.base / f"{name}.log")
    made.start()
    made.run("pipeline")
    deployed = RunDir(made.folder.path)
    assert encoder_digest(load_file(deployed.encoder)) == encoder_digest(load_file(embedded.encoder))
    tracks = sorted(file.stem for file in (embedded.path / "picks").iterdir())
    assert len(tracks) == 4
    for track in tracks:
        assert picks(deployed, track) == picks(embedded, track), track
    same = ("method", "coordination", "budget", "accuracy")
    results = [[{key: cell[key] for key in same} for cell in read_json(run.results)] for run in (deployed, embedded)]
    assert results[0] == results[1]
    assert max(cell["accuracy"] for cell in results[0]) > 0.2  # else equality would say little
    assert advice_of(deployed) == advice_in_process(embedded)


def advice_of(run: RunDir) -> dict:
    """What `cofal advise` tells of a running deployment."""
    command = [sys.executable, "-m", "cofal", "advise", "--server", str(run.path), "--budget", "12", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    advice = read_json(advice_file(run))
    assert json.loads(done.stdout)["overlap"] == advice["overlap"]
    return advice


def advice_in_process(run: RunDir) -> dict:
    place_order(run, "advise", budget=12)
    sites = sorted(file.parent for file in run.sites.glob("*/site.toml"))
    grid = InProcessGrid(client_app, {number + 2: {"site": str(site)} for number, site in enumerate(sites)})
    given = {"run-dir": str(run.path), "phase": "advise", "sites": len(sites)}
    server_app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=given))
    return read_json(advice_file(run))


def picks(run: RunDir, track: str) -> list[dict]:
    """All that was picked, and how; not how long it took."""
    return [
        {key: value for key, value in step.items() if key != "seconds"} for step in read_json(run.picks(track))["steps"]
    ]
