"""Run folders written by hand: every file a report reads, with any part changed or left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cofal.config import load, to_toml
from cofal.data.imageset import ImageSet
from cofal.federation.site_settings import SiteSettings, create_site
from cofal.rundir import RunDir

METHODS = ("maxherding", "random")


def curve(method: str, kind: str, budgets: list[int]) -> list[float]:
    """Made-up accuracies: together above alone above random."""
    start = {"central": 0.6, "per-client": 0.5}[kind] - (0.1 if method == "random" else 0.0)
    return [start + 0.3 * number / max(1, len(budgets) - 1) for number in range(len(budgets))]


@pytest.fixture
def written_run(tmp_path):
    """A maker of run folders: 20 images a client around two centres, picked in the order of their ids."""

    def make(
        folder: str = "run",
        *,
        methods: tuple[str, ...] = METHODS,
        kinds: tuple[str, ...] = ("central", "per-client"),
        budgets: tuple[int, ...] = (4, 8),
        clients: tuple[str, ...] = ("north", "south"),
        classes: tuple[str, ...] = ("cat", "dog"),
        sample: str = "{client}/{row}",
        accuracies: dict[tuple[str, str], list[float]] | None = None,
        share: str = "raw",
        rounds: int = 3,
        probe: bool = True,
        images: bool = True,
        overrides: tuple[str, ...] = (),
    ) -> RunDir:
        run = RunDir(tmp_path / folder)
        listed = f"selection.methods={json.dumps(list(methods))}"
        config = load(
            "digits", [listed, f"selection.budgets={list(budgets)}", f"clients.count={len(clients)}", *overrides]
        )
        _write(run.config, to_toml(config))
        rng = np.random.default_rng(0)
        ids = {client: [sample.format(client=client, row=row) for row in range(20)] for client in clients}
        tracks = [(method, kind) for method in methods for kind in kinds if method != "random" or kind == "per-client"]
        cells = []
        for method, kind in tracks:
            values = (accuracies or {}).get((method, kind)) or curve(method, kind, list(budgets))
            picks = [
                {
                    "rank": rank,
                    "client": clients[rank % len(clients)],
                    "id": ids[clients[rank % len(clients)]][rank // len(clients)],
                }
                for rank in range(budgets[-1])
            ]
            ends = [0, *budgets]
            steps = [
                {"budget": end, "picks": picks[begin:end], "seconds": 0.5}
                for begin, end in zip(ends, budgets, strict=False)
            ]
            _json(run.picks(f"{method}-{kind}"), {"method": method, "coordination": kind, "steps": steps})
            for budget, value in zip(budgets, values, strict=True):
                cell = {
                    "method": method,
                    "coordination": kind,
                    "budget": budget,
                    "seed": 0,
                    "accuracy": value,
                    "seconds": 1.0,
                }
                cells.append(cell)
        _json(run.results, cells)
        sites = {}
        for number, client in enumerate(clients):
            rows = rng.normal(size=(20, 8)).astype(np.float32) * 0.1
            rows[np.arange(20), np.arange(20) % 2] += 1
            sites[client] = {"ids": ids[client], "known": [], "file": f"{number}.npy" if share != "none" else ""}
            if share != "none":
                (run.server / "embeddings").mkdir(parents=True, exist_ok=True)
                np.save(run.server / "embeddings" / f"{number}.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
        terms = {"digest": "0123", "share": share, "epsilon": 0.0, "seed": 0}
        _json(run.server / "embeddings" / "index.json", {"terms": terms, "dimension": 8, "sites": sites})
        data = {"digest": "abcd", "train": 20 * len(clients), "test": 100, "classes": list(classes), "skipped": 0}
        trips = {"pretrain": rounds, "embed": 1, "train": config.train.rounds * len(cells)}
        traffic = {phase: {"up": 12345, "down": 678, "round_trips": count} for phase, count in trips.items()}
        info = {
            "versions": {"cofal": "0.1.0"},
            "machine": "test",
            "sites": dict.fromkeys(clients, 20),
            "data": data,
            "share": share,
        }
        _json(run.info, {**info, "traffic": traffic})
        for number in range(1, rounds + 1):
            run.log_round(
                job="encoder", round=number, loss=5.0 / number, seconds=1.0, **({"knn": 0.3 * number} if probe else {})
            )
        if images:
            for number, client in enumerate(clients):
                pixels = rng.integers(0, 255, (20, 8, 8, 1)).astype(np.uint8)
                labels = np.arange(20) % len(classes)
                ImageSet.of(pixels, ids[client], labels, list(classes)).save(run.sites / f"images-{number}")
                settings = SiteSettings(name=client, images=str(run.sites / f"images-{number}"), oracle=True)
                create_site(run.sites / f"site-{number}", settings)
        return run

    return make


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _json(path: Path, value: object) -> None:
    _write(path, json.dumps(value))
