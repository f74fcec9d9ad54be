"""Three sites at which people label, on the embedded grid; phases run one by one, each as its own ServerApp run."""

from __future__ import annotations

import shutil
from pathlib import Path

from flwr.app import Context, RecordDict

from cofal.config import load
from cofal.federation.client_app import app as client_app
from cofal.federation.embedded import prepare
from cofal.federation.grid import InProcessGrid
from cofal.federation.orders import place_order
from cofal.federation.server_app import app as server_app
from cofal.federation.site import open_site
from cofal.federation.site_settings import create_site, read_settings
from cofal.files import read_json
from cofal.rundir import MAIN, RunDir
from small_run import SMALL

OPTIONS = [
    *SMALL,
    "data.limit=150",
    "encoder.frozen=frozen_pixels:encode",
    "train.rounds=3",
    'selection.methods=["maxherding"]',
    'selection.coordination=["central"]',
    "engine.timeout=20",
]


class Deployment:
    """A run directory, sites with label stores, and the grid between them."""

    def __init__(self, folder: Path, cache: Path, *overrides: str, grid: type[InProcessGrid] = InProcessGrid):
        self.config = load("digits", [*OPTIONS, *overrides])
        self.run = RunDir(folder)
        folder.mkdir(parents=True)
        self.run.open(self.config)
        self.sites = prepare(self.config, self.run, cache)
        self.folders = sorted(file.parent for file in self.run.sites.glob("*/site.toml"))
        for site in self.folders:
            create_site(site, read_settings(site).model_copy(update={"oracle": False}))
        self.nodes = {number + 2: {"site": str(site)} for number, site in enumerate(self.folders)}
        self.grid = grid(client_app, self.nodes)

    def phase(self, name: str, **options: object) -> None:
        if name in ("select", "train", "advise"):
            place_order(self.run, name, **options)
        given = {"run-dir": str(self.run.path), "phase": name, "sites": self.sites}
        server_app(self.grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=given))

    def order(self, name: str, **options: object) -> None:
        """A phase as the command line runs it: the order is closed when its outcome was told."""
        from cofal.federation.orders import close_order

        self.phase(name, **options)
        close_order(self.run, name)

    def store(self, number: int):
        return open_site(self.folders[number]).store

    def label_all(self, *numbers: int, leave: int = 0) -> None:
        """People answer every open question (but the last `leave`) with the truth."""
        for number in numbers or range(self.sites):
            site = open_site(self.folders[number])
            place = {sample: row for row, sample in enumerate(site.train.ids)}
            waiting = [query.id for query in site.store.queries(MAIN, state="open")]
            for sample in waiting[: len(waiting) - leave]:
                truth = site.train.classes[site.train.labels[place[sample]]]
                site.store.label(sample, truth, "ann", 1.0)

    @property
    def steps(self) -> list[dict]:
        return read_json(self.run.picks(MAIN))["steps"]

    def asked(self) -> list[list[str]]:
        return [open_site(folder).asked(MAIN) for folder in self.folders]

    def status(self) -> dict:
        return read_json(self.run.status)


def copy(deployment: Deployment, folder: Path) -> Deployment:
    """The same deployment as it stands now, to be continued in another way."""
    shutil.copytree(deployment.run.path, folder)
    twin = object.__new__(Deployment)
    twin.__dict__.update(deployment.__dict__)
    twin.run = RunDir(folder)
    twin.folders = [folder / path.relative_to(deployment.run.path) for path in deployment.folders]
    twin.nodes = {number + 2: {"site": str(site)} for number, site in enumerate(twin.folders)}
    twin.grid = type(deployment.grid)(client_app, twin.nodes)
    return twin
