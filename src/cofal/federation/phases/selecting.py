"""Phase II: which samples each site is asked to label, budget step by budget step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from cofal.config import Config
from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet
from cofal.federation.phases.aggregating import Task, select_from_aggregates
from cofal.federation.phases.embedding import Shared
from cofal.federation.phases.pretrain import Encoder
from cofal.files import read_json, write_json
from cofal.rng import generator
from cofal.rundir import RunDir
from cofal.selection import select
from cofal.selection.shares import divide


@dataclass(frozen=True)
class Track:
    """One sequence of selections: a method under one kind of coordination."""

    method: str
    coordination: str

    @property
    def name(self) -> str:
        return f"{self.method}-{self.coordination}"


def tracks(config: Config) -> list[Track]:
    """All tracks of a run. Random needs no coordination: it is the same drawn at the sites, so it has one track."""
    found = []
    for method in config.selection.methods:
        kinds = ["per-client"] if method == "random" else config.selection.coordination
        found += [Track(method, kind) for kind in kinds]
    return found


def site_budgets(config: Config, fleet: Fleet) -> list[dict[str, int]]:
    """For each cumulative budget, the labels of each site; raises if a site cannot offer its part."""
    room = [member.samples - member.known_labels for member in fleet.members.values()]
    shares = config.selection.shares
    if shares == "equal":
        weights = [1] * len(room)
    elif shares == "proportional":
        weights = [member.samples for member in fleet.members.values()]
    elif len(shares) != len(room):
        raise UserError(
            f"selection.shares = {shares} lists {len(shares)} sites, "
            f"but {len(room)} take part: {', '.join(fleet.names)}"
        )
    else:
        weights = [int(share) for share in shares]
    return [dict(zip(fleet.names, divide(total, weights, room), strict=True)) for total in config.selection.budgets]


def select_step(
    fleet: Fleet,
    config: Config,
    run: RunDir,
    encoder: Encoder,
    shared: Shared,
    track: Track,
    step: int,
    budgets: list[dict[str, int]],
) -> list[dict[str, Any]]:
    """The picks of a track up to budget number `step`, as [{rank, client, id}]; computed once, then read back.

    An aggregate selection's picks have no id: which samples they are stays at the sites.
    """
    file = run.picks(track.name)
    record: dict[str, Any] = {"method": track.method, "coordination": track.coordination, "steps": []}
    if file.exists():
        record = read_json(file)
    done: list[dict[str, Any]] = record["steps"]
    if len(done) <= step:
        earlier = [pick for each in done for pick in each["picks"]]
        asked = {name: [pick.get("id", "") for pick in earlier if pick["client"] == name] for name in fleet.names}
        wanted = {name: budgets[step][name] - len(asked[name]) for name in fleet.names}
        seed = int(generator(config.seed, "select", config.selection.budgets[step]).integers(2**31))
        clock = time.monotonic()
        fleet.phase = f"select {track.name}"
        if track.coordination == "aggregate":
            picks = _aggregate(config, fleet, encoder, shared, track, asked, wanted, seed)
        elif track.coordination == "central":
            picks = _central(config, fleet, shared, track.method, asked, wanted, seed)
        else:
            picks = _per_client(config, fleet, encoder, track.method, asked, wanted, seed)
        picks = [{"rank": rank, **pick} for rank, pick in enumerate(picks, start=len(earlier))]
        done.append({"budget": config.selection.budgets[step], "picks": picks, "seconds": time.monotonic() - clock})
        write_json(file, record)
    return [pick for each in done[: step + 1] for pick in each["picks"]]


def _params(config: Config, method: str) -> dict[str, Any]:
    if method == "probcover":
        return {"delta": config.selection.delta}
    return {"lengthscale": config.selection.lengthscale} if method == "maxherding" else {}


def _central(
    config: Config,
    fleet: Fleet,
    shared: Shared,
    method: str,
    asked: dict[str, list[str]],
    wanted: dict[str, int],
    seed: int,
) -> list[dict[str, Any]]:
    """The server picks over the union of what the sites shared."""
    params = _params(config, method)
    if method == "probcover":
        params["correct_radius"] = config.selection.correct_radius
    picks = select(
        [shared.embeddings[name] for name in fleet.names],
        [wanted[name] for name in fleet.names],
        method=method,
        coordination="central",
        labeled=[shared.positions(name, [*shared.known[name], *asked[name]]) for name in fleet.names],
        seed=seed,
        epsilon=config.selection.epsilon,
        mechanism=config.selection.mechanism,
        already_noised=True,
        **params,
    )
    names = fleet.names
    return [{"client": names[client], "id": shared.ids[names[client]][row]} for client, row in picks.order]


def _per_client(
    config: Config,
    fleet: Fleet,
    encoder: Encoder,
    method: str,
    asked: dict[str, list[str]],
    wanted: dict[str, int],
    seed: int,
) -> list[dict[str, Any]]:
    """Every site picks alone; the first picks of all sites come before the second ones."""
    told = {"digest": encoder.digest, "method": method, "seed": seed, "params": m.to_json(_params(config, method))}
    contents = {
        name: m.pack(config={**told, "asked": asked[name], "budget": count})
        for name, count in wanted.items()
        if count > 0
    }
    replies = fleet.ask(m.PICK, contents)
    lists = {name: list(m.config_of(reply)["ids"]) for name, reply in replies.items()}
    longest = max(map(len, lists.values()), default=0)
    return [
        {"client": name, "id": ids[rank]} for rank in range(longest) for name, ids in lists.items() if rank < len(ids)
    ]


def _aggregate(
    config: Config,
    fleet: Fleet,
    encoder: Encoder,
    shared: Shared,
    track: Track,
    asked: dict[str, list[str]],
    wanted: dict[str, int],
    seed: int,
) -> list[dict[str, Any]]:
    """The server coordinates from centroids, counts and distances; the sites know which samples were picked."""
    task = Task(encoder.digest, track.name, track.method, {name: len(ids) for name, ids in asked.items()}, wanted)
    params = {**_params(config, track.method), "min_region": config.selection.min_region}
    sites = select_from_aggregates(fleet, task, shared.dimension, seed, params, secure=config.selection.secure_sums)
    return [{"client": name} for name in sites]


def assign(fleet: Fleet, track: str, picks: list[dict[str, Any]]) -> None:
    """Tell every site its own picks, and nothing of the others'. After an aggregate selection the sites know them."""
    if any("id" not in pick for pick in picks):
        return
    fleet.phase = "assign"
    own = {name: [pick["id"] for pick in picks if pick["client"] == name] for name in fleet.names}
    fleet.ask(m.ASSIGN, {name: m.pack(config={"track": track, "ids": ids}) for name, ids in own.items()})
