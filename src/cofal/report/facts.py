"""What a report knows of a run, read from its folder; parts that a folder does not hold are absent, not guessed."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cofal.config import Config, parse
from cofal.errors import UserError
from cofal.federation.phases.overheard import Heard, read_heard
from cofal.files import read_json
from cofal.report.summary import by_track
from cofal.rundir import MAIN, RunDir

TITLES = {"maxherding": "MaxHerding", "probcover": "ProbCover", "typiclust": "TypiClust", "random": "Random"}
TOGETHER, VEILED, ALONE, MEASURED = "central", "aggregate", "per-client", "auto"
WORDS = {TOGETHER: "together", VEILED: "from aggregates", ALONE: "alone", MEASURED: "as alike as they are"}
READABLE_PICKS = 24  # more marks than this at once hide each other on the map
Curve = list[float]  # one value a budget


@dataclass(frozen=True)
class Pick:
    """One sample that a client was asked to label; rank 0 was chosen first in its track."""

    rank: int
    client: str
    id: str


@dataclass(frozen=True)
class Shared:
    """What the clients shared of their embeddings: the whole of what the server could compare."""

    terms: dict[str, Any]  # encoder digest, noise and seed: they decide the embeddings
    ids: dict[str, list[str]]  # by client
    embeddings: dict[str, np.ndarray]  # by client (n, d) float32
    centroids: bool = False  # rows are means of groups of samples, and directions of picks: no embedding was sent

    @property
    def size(self) -> int:
        return sum(map(len, self.ids.values()))


class Facts:
    """A finished run: configuration, results, picks, and whatever else its folder holds."""

    def __init__(self, run: RunDir):
        if not run.path.is_dir():
            raise UserError(f"no run at {run.path}; give the folder of a finished run")
        if not run.config.exists():
            raise UserError(f"{run.path} holds no run (no config.toml); give the folder of a finished run")
        if not run.results.exists():
            raise UserError(f"the run in {run.path} is not finished (no results.json); run its command again, to go on")
        self.run = run
        self.toml = run.config.read_text(encoding="utf-8")
        try:
            values = tomllib.loads(self.toml)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{run.config} is not valid TOML: {error}") from None
        if not values:  # a run's has every key
            raise UserError(f"{run.config} is empty; restore it, or make the run anew")
        self.config: Config = parse(values, str(run.config))
        self.results: list[dict[str, Any]] = read_json(run.results)
        if not self.results:
            raise UserError(f"{run.results} is empty; remove it and run the command again")
        self.info: dict[str, Any] = read_json(run.info) if run.info.exists() else {}
        self.budgets: list[int] = sorted({cell["budget"] for cell in self.results})
        self.curves = by_track(self.results)

    @property
    def deployed(self) -> bool:
        """Is this the server of a deployment, whose images and labels are elsewhere?"""
        return self.run.picks(MAIN).exists()

    @property
    def share(self) -> str:
        """What the clients shared of their embeddings: raw, perturbed or none; empty where it is not known."""
        index = self.run.server / "embeddings" / "index.json"
        return str(self.info.get("share") or (read_json(index)["terms"]["share"] if index.exists() else ""))

    @property
    def clients(self) -> dict[str, int]:
        """Name -> number of samples."""
        return self.info.get("sites", {})

    @property
    def data(self) -> dict[str, Any]:
        """Numbers of images and the class names; empty where the run did not note them."""
        return self.info.get("data", {})

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for method, _ in self.curves))

    @property
    def selectors(self) -> list[str]:
        """The methods that choose, in the run's order; random is a yardstick, not one of them."""
        return [method for method in self.methods if method != "random"]

    @property
    def together(self) -> str:
        """How this run coordinates: centrally, or from aggregates where nothing ran centrally."""
        central = any(method != "random" and kind == TOGETHER for method, kind in self.curves)
        return TOGETHER if central or not any(kind == VEILED for _, kind in self.curves) else VEILED

    @property
    def pairs(self) -> list[str]:
        """Methods that ran both together and alone."""
        return [method for method in self.methods if {(method, self.together), (method, ALONE)} <= self.curves.keys()]

    @property
    def map_budget(self) -> int:
        """The budget whose picks the map shows first: the largest that is still readable."""
        return max([budget for budget in self.budgets if budget <= READABLE_PICKS] or self.budgets[:1])

    @property
    def random(self) -> Curve | None:
        return next((curve for (method, _), curve in self.curves.items() if method == "random"), None)

    def track(self, method: str, coordination: str) -> str:
        """The name under which the run keeps such a curve's picks; a deployment has one track, whatever its methods."""
        for cell in self.results:
            if (cell["method"], cell["coordination"]) == (method, coordination) and "track" in cell:
                return str(cell["track"])
        return f"{method}-{coordination}"

    @cached_property
    def picks(self) -> dict[tuple[str, str], list[Pick]]:
        """(method, coordination) -> all picks by rank; a track whose file is missing is left out.

        Picks from aggregates are known to the sites alone: only a simulated run, whose sites are here, can show them.
        """
        found = {}
        for method, coordination in self.curves:
            track = self.track(method, coordination)
            if not self.run.picks(track).exists():
                continue
            listed = [pick for step in read_json(self.run.picks(track))["steps"] for pick in step["picks"]]
            lists = {name: self._asked(name, track) for name in {pick["client"] for pick in listed if "id" not in pick}}
            if all(len(ids) == sum(pick["client"] == name for pick in listed) for name, ids in lists.items()):
                turn = {name: iter(ids) for name, ids in lists.items()}
                found[method, coordination] = [
                    Pick(pick["rank"], pick["client"], pick["id"] if "id" in pick else next(turn[pick["client"]]))
                    for pick in listed
                ]
        return found

    def _asked(self, client: str, track: str) -> list[str]:
        """What a simulated site was asked, in order; empty where the sites are elsewhere."""
        file = self.run.sites / client / "asked" / f"{track}.json"
        return read_json(file) if file.exists() else []

    @cached_property
    def likeness(self) -> str:
        """What the last selection under `auto` measured and decided; empty where there was none."""
        for method, coordination in reversed(self.curves):
            file = self.run.picks(self.track(method, coordination))
            steps = read_json(file)["steps"] if file.exists() else []
            if told := [step["auto"]["told"] for step in steps if "auto" in step]:
                return str(told[-1])
        return ""

    @cached_property
    def selection_seconds(self) -> float:
        """Time spent choosing, over all tracks."""
        files = [self.run.picks(self.track(method, coordination)) for method, coordination in self.curves]
        return sum(step.get("seconds", 0.0) for file in files if file.exists() for step in read_json(file)["steps"])

    @cached_property
    def encoder_rounds(self) -> list[dict[str, Any]]:
        """The logged rounds of Phase I; none for a saved or frozen encoder."""
        return [line for line in self.run.rounds() if line.get("job") == "encoder"]

    @cached_property
    def shared(self) -> Shared | None:
        """The embeddings that the server was sent, or None where the clients kept theirs."""
        folder = self.run.server / "embeddings"
        if not (folder / "index.json").exists():
            return None
        record = read_json(folder / "index.json")
        sites = {
            name: site for name, site in record["sites"].items() if site["file"] and (folder / site["file"]).exists()
        }
        if not sites or len(sites) < len(record["sites"]):
            return None
        return Shared(
            record["terms"],
            {name: list(site["ids"]) for name, site in sites.items()},
            {name: np.load(folder / site["file"], mmap_mode="r", allow_pickle=False) for name, site in sites.items()},
        )

    @cached_property
    def heard(self) -> tuple[Shared, dict[tuple[str, str], list[Pick]], int] | None:
        """Of a selection from aggregates: the centroids that the clients told openly, and the directions of the picks.

        Each pick is a row of its own beside the centroids, under a name that only says which pick it is. The number is
        that of the picks without a direction, which were left to the clients.
        """
        kept = {key: read_heard(self.run, self.track(*key)) for key in self.curves if key[1] == VEILED}
        steps = [step for steps in kept.values() for step in steps]
        if not steps:
            return None
        widest: Heard = max(steps, key=lambda step: sum(map(len, step.centroids.values())))
        ids = {name: [_centroid(*each) for each in enumerate(counts, 1)] for name, counts in widest.counts.items()}
        rows = {name: list(centroids) for name, centroids in widest.centroids.items()}
        picks: dict[tuple[str, str], list[Pick]] = {key: [] for key in kept}
        alone = 0
        for key, told in kept.items():
            for rank, client, direction in (pick for step in told for pick in step.picks):
                alone += direction is None
                if direction is not None:
                    name = f"pick {rank + 1} of {track_title(*key)}"
                    ids.setdefault(client, []).append(name)
                    rows.setdefault(client, []).append(direction)
                    picks[key].append(Pick(rank, client, name))
        terms = {
            "digest": self.info.get("encoder", ""),
            "share": VEILED,
            "seed": self.config.seed,
            "picks": sum(map(len, picks.values())),
        }
        found = {name: np.stack(each) for name, each in rows.items() if each}
        return Shared(terms, {name: ids[name] for name in found}, found, centroids=True), picks, alone


def _centroid(number: int, count: int) -> str:
    return f"centroid {number}" + (f", of {count:,} images" if count > 0 else "")


def title(method: str) -> str:
    """A method as a person writes it; an unknown one (a plug-in) keeps its own name."""
    return TITLES.get(method, method)


def track_title(method: str, coordination: str) -> str:
    """`MaxHerding together`; random needs no coordination, so it has no second word."""
    return title(method) if method == "random" else f"{title(method)} {WORDS.get(coordination, coordination)}"
