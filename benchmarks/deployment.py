"""Seconds a round trip takes in a deployment on one machine, with resident sites and with Flower's own SuperNodes.

    python -m benchmarks.deployment

Writes benchmarks/results/deployment.md. One server and three sites on loopback, over TLS, all on this machine: a tiny
round trip, a round of FedAvg with a 45 MB model and next to no training (one step on four images: all but overhead),
and an aggregate selection of 100 samples.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch

from benchmarks.deployment_app.roundtrips import question
from cofal.deploy import flower
from cofal.deploy.control_api import Control
from cofal.federation.client_app import train
from cofal.federation.gate import Request
from cofal.federation.site import open_site
from cofal.rundir import MAIN
from running_federation import ONE_THREAD, Federation, free_ports

HERE = Path(__file__).parent
APP = HERE / "deployment_app"
SITES = 3
TARGETS = {"resident": 6.0, "stock": 15.0}  # seconds of overhead of a round with 45 MB
SELECTION_TARGET = 60.0


def main() -> None:
    base = Path(tempfile.mkdtemp(prefix="cofal-deployment-"))
    rows = []
    made = Federation(base, sites=SITES, per_site=400)
    try:
        made.start()
        selection = select(made)
        for name in made.names:
            label(base / name)
        rows.append(("resident", *measure(made, base / "resident.json")))
        for site in made.sites.values():
            site.stop()
        training = step(base / made.names[0])
        stock = [supernode(made, name) for name in made.names]
        try:
            rows.append(("stock", *measure(made, base / "stock.json")))
        finally:
            for process in stock:
                process.terminate()
                process.wait()
        made.server.stop()
    finally:
        made.close()
        shutil.rmtree(base, ignore_errors=True)
    write(rows, training, selection)


def measure(made: Federation, out: Path) -> tuple[list[float], list[float]]:
    """Seconds of each tiny and each 45 MB round trip."""
    with Control(made.folder) as control:
        run = control.start(APP, {"out": str(out), "sites": SITES})
        while (state := control.state(run)).status != "finished":
            time.sleep(1)
    if state.outcome != "completed":
        raise SystemExit(f"{state.details}; see {made.server.log}")
    found = json.loads(out.read_text())
    return found["tiny"], found["large"]


def select(made: Federation) -> float:
    """Seconds of an aggregate selection of 100 samples, from command to picks; the encoder is there already."""
    made.run("pretrain")
    made.run("embed")
    began = time.monotonic()
    made.run("select", budget=100)
    return time.monotonic() - began


def label(site_folder: Path) -> None:
    """Label four of the asked samples, so that a site's answer differs from what it was sent."""
    with open(site_folder.parent / "images" / site_folder.name / "truth.csv", newline="") as file:
        truth = {row["id"]: row["label"] for row in csv.DictReader(file)}
    store = open_site(site_folder).store
    for query in store.queries(MAIN, state="open")[:4]:
        store.label(query.id, truth[query.id], "benchmark", 1.0)


def step(site_folder: Path) -> float:
    """Seconds of a site's own part of the large round, alone and on one thread as the sites run; the first warms up."""
    site, (arrays, config) = open_site(site_folder), question()
    torch.set_num_threads(1)
    seconds = []
    for _ in range(4):
        began = time.monotonic()
        train(site, arrays, Request(config))
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds[1:])


def supernode(made: Federation, name: str) -> subprocess.Popen[bytes]:
    """Flower's own client process for a site: it starts a process for every message."""
    site = made.base / name
    with open(made.base / f"{name}-stock.log", "wb") as log:
        return subprocess.Popen(
            [
                flower.program("flower-supernode"),
                "--superlink", f"localhost:{made.port}",
                "--root-certificates", str(made.folder.authority),
                "--auth-supernode-private-key", str(site / "site.key"),
                "--node-config", f'site="{site}"',
                "--port", str(free_ports(1)[0]),
            ],
            env={**flower.environment(made.folder), **ONE_THREAD, "FLWR_HOME": str(site)},
            stdout=log,
            stderr=log,
        )  # fmt: skip


def write(rows: list[tuple[str, list[float], list[float]]], training: float, selection: float) -> None:
    lines = [
        "# Seconds a round trip takes in a deployment",
        "",
        f"`python -m benchmarks.deployment` on {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}: one server and {SITES} sites on this machine, TLS on loopback. The 45 MB",
        "round sends a ResNet-18 to every site, which takes one step on four images, and gets three others back;",
        f"its overhead is what it takes beyond that step, {training:.2f} s for one site alone.",
        f"Median (range). Load of the machine at the end: {os.getloadavg()[0]:.1f}.",
        "",
        "| client process | tiny round trip | 45 MB each way | overhead | target |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, tiny, large in rows:
        overhead = statistics.median(large) - training
        lines.append(f"| {kind} | {_told(tiny)} | {_told(large)} | {overhead:.2f} s | {TARGETS[kind]:.0f} s |")
    lines += ["", f"Aggregate selection of 100 samples over {SITES} resident sites, from command to picks: "
              f"{selection:.1f} s (target {SELECTION_TARGET:.0f} s).", ""]  # fmt: skip
    (HERE / "results" / "deployment.md").write_text("\n".join(lines))
    print("\n".join(lines))


def _told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
