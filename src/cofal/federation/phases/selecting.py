"""Phase II: which samples each site is asked to label: the choosing itself, and the steps of an experiment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import RecordDict

from cofal.config import Config
from cofal.errors import UserError
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet, Unusable
from cofal.federation.phases.aggregating import Task, select_from_aggregates
from cofal.federation.phases.embedding import Shared
from cofal.federation.phases.likeness import choose_as_alike
from cofal.federation.phases.overheard import Overheard
from cofal.federation.phases.pretrain import Encoder
from cofal.files import read_json, write_json
from cofal.rng import generator
from cofal.rundir import RunDir
from cofal.selection import select
from cofal.selection.auto import Decision
from cofal.selection.shares import divide

Pick = dict[str, Any]  # rank, client and, unless it was chosen from aggregates, id
Measured = dict[str, Any]  # {"auto": how alike the sites are and what follows}; empty under any other coordination


@dataclass(frozen=True)
class Track:
    """One sequence of selections: a method under one kind of coordination."""

    method: str
    coordination: str

    @property
    def name(self) -> str:
        return f"{self.method}-{self.coordination}"


@dataclass(frozen=True)
class Choice:
    """One selection: who chooses how, what each site was asked before and how many more it shall be asked now."""

    track: str
    method: str
    coordination: str
    asked: Mapping[str, int]  # by site
    wanted: Mapping[str, int]  # by site
    seed: int
    number: int | None = None  # of the selection, where people label: samples that they skip leave the pool
    skipped: Mapping[str, int] = field(default_factory=dict)  # by site: samples that have left its pool
    first: int = 0  # rank of the first pick: how many there are before it in the track

    @property
    def label(self) -> dict[str, int]:
        """What ties the messages of one selection together."""
        return {} if self.number is None else {"selection": self.number}


def tracks(config: Config) -> list[Track]:
    """All tracks of a run. Random needs no coordination: it is the same drawn at the sites, so it has one track."""
    found = []
    for method in config.selection.methods:
        kinds = ["per-client"] if method == "random" else config.selection.coordination
        found += [Track(method, kind) for kind in kinds]
    return found


def share_weights(config: Config, fleet: Fleet, worth: Sequence[float] | None = None) -> Sequence[float]:
    """Each site's weight when labels are divided; `worth` is what `shares = "auto"` goes by, once it is measured."""
    shares = config.selection.shares
    if shares == "equal":
        return [1] * len(fleet.names)
    if shares == "auto" and worth is not None:
        return worth
    if shares in ("proportional", "auto"):
        return [member.samples for member in fleet.members.values()]
    if len(shares) != len(fleet.names):
        raise UserError(
            f"selection.shares = {shares} lists {len(shares)} sites, "
            f"but {len(fleet.names)} take part: {', '.join(fleet.names)}"
        )
    return [int(share) for share in shares]


def site_budgets(config: Config, fleet: Fleet, worth: Sequence[float] | None = None) -> list[dict[str, int]]:
    """For each cumulative budget, the labels of each site; raises if a site cannot offer its part.

    Before `worth` is measured, `shares = "auto"` is checked with the sites' sizes in its place.
    """
    room = [member.samples - member.known_labels for member in fleet.members.values()]
    weights = share_weights(config, fleet, worth)
    return [dict(zip(fleet.names, divide(total, weights, room), strict=True)) for total in config.selection.budgets]


def selection_seed(config: Config, total: int) -> int:
    """The seed of the selection that brings a track to `total` labels."""
    return int(generator(config.seed, "select", total).integers(2**31))


def select_step(
    fleet: Fleet,
    config: Config,
    run: RunDir,
    encoder: Encoder,
    shared: Shared,
    track: Track,
    step: int,
    budgets: list[dict[str, int]],
) -> list[Pick]:
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
        counts = {name: len(ids) for name, ids in asked.items()}
        wanted = {name: budgets[step][name] - counts[name] for name in fleet.names}
        total = config.selection.budgets[step]
        choice = Choice(
            track.name, track.method, track.coordination, counts, wanted, selection_seed(config, total),
            first=len(earlier),
        )  # fmt: skip
        clock = time.monotonic()
        measured: Measured = {}
        if track.coordination in config.selection.seeing:
            taken = {name: [*shared.known[name], *asked[name]] for name in fleet.names}
            picks, measured = choose_centrally(fleet, config, shared, choice, taken)
        else:
            picks, measured = choose_at_sites(fleet, config, run, encoder, shared.dimension, choice)
        picks = [{"rank": rank, **pick} for rank, pick in enumerate(picks, start=len(earlier))]
        done.append({"budget": total, "picks": picks, **measured, "seconds": time.monotonic() - clock})
        write_json(file, record)
    return [pick for each in done[: step + 1] for pick in each["picks"]]


def told_decision(run: RunDir, track: str, step: int) -> str:
    """What `auto` measured and decided at budget number `step` of a track, in words; empty under the others."""
    told: str = read_json(run.picks(track))["steps"][step].get("auto", {}).get("told", "")
    return told


def choose_centrally(
    fleet: Fleet, config: Config, shared: Shared, choice: Choice, taken: Mapping[str, list[str]]
) -> tuple[list[Pick], Measured]:
    """The server picks over what the sites shared; `taken` are the ids labelled or asked for before.

    With the picks comes what `auto` measured and decided, for the record of the selection.
    """
    fleet.phase = f"select {choice.track}"
    params = config.selection.params(choice.method)
    if choice.method == "probcover":
        params["correct_radius"] = config.selection.correct_radius
    if choice.method == "maxherding":
        params["correct_lengthscale"] = config.selection.correct_radius
    names = fleet.names
    picks = select(
        [shared.embeddings[name] for name in names],
        [choice.wanted[name] for name in names],
        method=choice.method,
        coordination=choice.coordination,
        labeled=[shared.positions(name, taken[name]) for name in names],
        seed=choice.seed,
        epsilon=config.selection.epsilon,
        mechanism=config.selection.mechanism,
        already_noised=True,
        **params,
    )
    found = [{"client": names[client], "id": shared.ids[names[client]][row]} for client, row in picks.order]
    return found, _measured(names, picks.decision)


def _measured(names: list[str], decision: Decision | None) -> Measured:
    return {} if decision is None else {"auto": {"sites": names, "told": decision.in_words(), **decision.as_dict()}}


def choose_at_sites(
    fleet: Fleet, config: Config, run: RunDir, encoder: Encoder, dimension: int, choice: Choice
) -> tuple[list[Pick], Measured]:
    """The sites pick: coordinated by the server from aggregates, each alone, or as `auto` finds from aggregates."""
    fleet.phase = f"select {choice.track}"
    params = config.selection.params(choice.method)
    if choice.coordination == "per-client":
        return _per_client(fleet, encoder, choice, params), {}
    task = Task(
        encoder.digest, choice.track, choice.method, choice.asked, choice.wanted, choice.skipped, choice.number
    )  # fmt: skip
    if choice.coordination == "auto":
        if not any(choice.wanted.values()):
            return [], {}
        sites, decision = choose_as_alike(
            fleet, config, run, task, dimension, choice.seed, choice.first, params
        )  # fmt: skip
        return [{"client": name} for name in sites], _measured(fleet.names, decision)
    params = config.selection.aggregate_params(choice.method)
    secure, heard = config.selection.secure_sums, Overheard(choice.method, fleet.names, dimension)
    sites = select_from_aggregates(fleet, task, dimension, choice.seed, params, secure=secure, heard=heard)
    heard.keep(run, choice.track, choice.first, sites)
    return [{"client": name} for name in sites], {}


def _per_client(fleet: Fleet, encoder: Encoder, choice: Choice, params: dict[str, Any]) -> list[Pick]:
    """Every site picks alone; the first picks of all sites come before the second ones."""
    told = {
        "digest": encoder.digest, "track": choice.track, "method": choice.method, "seed": choice.seed,
        "params": m.to_json(params), **choice.label,
    }  # fmt: skip
    contents = {
        name: m.pack(config={**told, "asked": choice.asked[name], "budget": count})
        for name, count in choice.wanted.items()
        if count > 0
    }

    def read(name: str, content: RecordDict) -> list[str]:
        ids = [str(each) for each in m.config_of(content)["ids"]]
        if len(ids) != choice.wanted[name] or len(set(ids)) != len(ids):
            raise Unusable(f"{len(set(ids))} different samples, not the {choice.wanted[name]} asked for")
        return ids

    lists = fleet.ask(m.PICK, contents, read)
    longest = max(map(len, lists.values()), default=0)
    return [
        {"client": name, "id": ids[rank]} for rank in range(longest) for name, ids in lists.items() if rank < len(ids)
    ]


def assign(fleet: Fleet, track: str, picks: list[Pick], decision: str = "") -> None:
    """Tell every site its own picks, and nothing of the others'. After an aggregate selection the sites know them.

    `decision`: what `auto` measured and decided, for the sites' ledgers.
    """
    if any("id" not in pick for pick in picks):
        return
    fleet.phase = "assign"
    own = {name: [pick["id"] for pick in picks if pick["client"] == name] for name in fleet.names}
    why = {"decision": decision} if decision else {}
    contents = {name: m.pack(config={"track": track, "ids": ids, **why}) for name, ids in own.items()}
    fleet.ask(m.ASSIGN, contents, lambda name, content: None)
