"""A real federation that is hurt on purpose: phases as processes, kills in their middle, and what must hold."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, RecordDict

from cofal.federation.client_app import app as client_app
from cofal.federation.grid import InProcessGrid
from cofal.federation.orders import close_order, place_order
from cofal.federation.server_app import app as server_app
from cofal.federation.site import open_site
from cofal.files import read_json
from cofal.learning.batches import one_thread
from cofal.privacy.ledger import FILE, read_ledger
from cofal.rundir import MAIN, RunDir
from running_federation import Federation, Running, wait_until

PHASES = {
    "pretrain": [], "embed": [], "select": ["--budget", "6"], "train": [],
}  # fmt: skip
PATIENCE = 420.0  # seconds that a phase may take on a busy machine


class Faulty:
    """A federation with its phases, its labels, and what must hold after every fault."""

    def __init__(self, made: Federation):
        self.made = made
        self.run = RunDir(made.folder.path)
        self.commands = itertools.count()
        self.labelled: dict[str, dict[str, str]] = {name: {} for name in made.names}
        self._server_app = 0

    def begin(self, phase: str) -> Running:
        self._server_app = read_json(self.run.status)["pid"] if self.run.status.exists() else 0  # of the phase before
        command = Running(
            ["server", phase, str(self.run.path), *PHASES[phase], "--json"],
            self.made.base / f"{next(self.commands)}.out",
        )
        command.start()
        return command

    def finish(self, phase: str, command: Running) -> dict:
        """Wait for the command's end; one that failed is given again, as its operator would."""
        for _ in range(4):
            assert command.process is not None
            if command.process.wait(PATIENCE) == 0:
                return json.loads(command.log.read_text().splitlines()[-1])
            if not self.made.server.alive:
                self.made.start_server()
            command = self.begin(phase)
        raise AssertionError(command.log.read_text()[-3000:])

    def do(self, phase: str) -> dict:
        return self.finish(phase, self.begin(phase))

    def under_way(self, phase: str, command: Running) -> bool:
        """Wait until the phase's ServerApp has asked the sites something; False if the phase ended first."""

        def asked() -> bool:
            status = read_json(self.run.status) if self.run.status.exists() else {}
            fresh = status.get("phase") == phase and status.get("pid") != self._server_app
            return (fresh and bool(status.get("asking"))) or not command.alive

        wait_until(asked, PATIENCE, f"{phase} under way")
        return command.alive

    def disturbed(self, phase: str, fault: Callable[[], None]) -> dict:
        """Run a phase and let `fault` happen in its middle."""
        command = self.begin(phase)
        assert self.under_way(phase, command), f"{phase} was over before it could be disturbed"
        fault()
        return self.finish(phase, command)

    # --- faults

    def kill_site(self, name: str) -> None:
        self.made.sites[name].kill()
        self.made.sites[name].start()

    def kill_server(self) -> None:
        self.made.server.kill()
        self.made.start_server()

    # --- labelling and what must hold

    def label_all(self) -> None:
        for name in self.made.names:
            label_open(self.made.base / name, self.labelled[name])

    def asked(self, name: str) -> list[str]:
        """What a site was asked to label so far."""
        return open_site(self.made.base / name).asked(MAIN)

    def selections(self) -> int:
        """How many selections were made."""
        return len(read_json(self.run.picks(MAIN))["steps"]) if self.run.picks(MAIN).exists() else 0

    def check(self) -> None:
        """No label, pick or checkpoint lost; no sample asked twice; no half-written file."""
        for name in self.made.names:
            site = open_site(self.made.base / name)
            asked = site.asked(MAIN)
            assert len(asked) == len(set(asked)), f"{name} was asked a sample twice"
            assert site.store.labels(MAIN) == self.labelled[name], f"labels of {name}"
            assert read_ledger(site.folder / FILE).broken == ""
        steps = read_json(self.run.picks(MAIN))["steps"] if self.run.picks(MAIN).exists() else []
        for step in steps:
            assert (
                sum(pick["client"] in self.made.names for pick in step["picks"]) == len(step["picks"]) == step["more"]
            )

    def outcome(self) -> dict:
        """What an undisturbed run must agree with."""
        return outcome(self.run, {name: self.made.base / name for name in self.made.names})


def label_open(site_folder: Path, noted: dict[str, str]) -> None:
    """People answer every open question of a site with the truth."""
    site = open_site(site_folder)
    with open(site_folder.parent / "images" / site_folder.name / "truth.csv", newline="") as file:
        truth = {row["id"]: row["label"] for row in csv.DictReader(file)}
    for query in site.store.queries(MAIN, state="open"):
        site.store.label(query.id, truth[query.id], "ann", 1.0)
        noted[query.id] = truth[query.id]


def undisturbed(made: Federation, plan: list[str], folder: Path, names: list[str] | None = None) -> dict:
    """The same phases on copies of the same sites (or of some), in this process and in peace; call it before the first
    phase."""
    names = names or made.names
    folder.mkdir()
    shutil.copyfile(made.folder.config, folder / "config.toml")
    shutil.copytree(made.images, folder / "images", ignore=shutil.ignore_patterns("*.png"))
    for name in names:
        shutil.copytree(made.base / name, folder / name)
    run = RunDir(folder)
    grid = InProcessGrid(client_app, {number + 2: {"site": str(folder / name)} for number, name in enumerate(names)})
    for phase in plan:
        if phase == "label":
            for name in names:
                label_open(folder / name, {})
            continue
        if phase in ("select", "train"):
            wanted = {"budget": 6, "method": "", "coordination": ""} if phase == "select" else {}
            place_order(run, phase, **wanted)
        given = {"run-dir": str(folder), "phase": phase, "sites": len(names)}
        with one_thread():  # as the sites' processes: the last bits of an encoder depend on the number of threads
            server_app(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=given))
        close_order(run, phase)
    return outcome(run, {name: folder / name for name in names})


def outcome(run: RunDir, sites: dict[str, Path]) -> dict:
    """Encoder, what every site was asked, and the curve so far."""
    cells = read_json(run.results) if run.results.exists() else []
    return {
        "asked": {name: open_site(folder).asked(MAIN) for name, folder in sites.items()},
        "encoder": read_json(run.info)["encoder"],
        "curve": [(cell["budget"], cell["accuracy"]) for cell in cells],
    }
