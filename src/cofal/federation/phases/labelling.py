"""Phase II and III where people label: one track of numbered selections, days apart, and trainings in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import RecordDict

from cofal.config import Config, parse
from cofal.errors import CofalError, UserError
from cofal.federation import messages as m
from cofal.federation.fleet import Fleet, Unusable
from cofal.federation.orders import Order, cells
from cofal.federation.phases.aggregating import Task
from cofal.federation.phases.embedding import Shared, gather
from cofal.federation.phases.likeness import site_worth
from cofal.federation.phases.pretrain import Encoder
from cofal.federation.phases.selecting import (
    Choice,
    Measured,
    Pick,
    choose_at_sites,
    choose_centrally,
    selection_seed,
    share_weights,
)
from cofal.federation.phases.training import Examiner, train_cell
from cofal.files import read_json, write_json
from cofal.rundir import MAIN, RunDir
from cofal.selection.shares import divide

log = logging.getLogger("cofal")
COUNTS = ("asked", "labelled", "skipped")
Steps = list[dict[str, Any]]


def select_more(fleet: Fleet, config: Config, run: RunDir, encoder: Encoder, order: Order) -> dict[str, Any]:
    """Selection number `order.number`: chosen once, then read back; every site that is there is told its part.

    It asks `order.budget` labels in total, and one more for every sample skipped before it. The picks are on disk
    before any site hears of them, so that a repeated order asks for the same samples.
    """
    steps = read_steps(run)
    tell_sites(fleet, run, steps)  # those that were away before: their lists must be whole before more is chosen
    if len(steps) < order.number:
        steps.append(_choose(fleet, chosen(config, order), run, encoder, steps, order))
        _write_steps(run, steps)
        tell_sites(fleet, run, steps)
    return steps[order.number - 1]


def chosen(config: Config, order: Order) -> Config:
    """The configuration with the one method and coordination of this selection.

    Where each site chooses alone nothing is summed, and from aggregates no embedding leaves: what is set for those
    selections that need it has no say in this one. A selection that would show what secure sums hide is refused.
    """
    method = order.method or config.selection.methods[0]
    coordination = order.coordination or config.selection.coordination[0]
    if method == "random":
        coordination = "per-client"
    values = {**config.selection.model_dump(), "methods": [method], "coordination": [coordination]}
    if coordination == "per-client":
        values["secure_sums"] = False
    if not config.selection.model_copy(update=values).seeing:
        values["epsilon"] = 0.0
    if not config.selection.model_copy(update=values).aggregating:
        values["count_noise"] = None
    return parse({**config.model_dump(), "selection": values}, f"a selection by {method}, {coordination}")


def _choose(fleet: Fleet, config: Config, run: RunDir, encoder: Encoder, steps: Steps, order: Order) -> dict[str, Any]:
    (method,), (coordination,) = config.selection.methods, config.selection.coordination
    total = sum(step["more"] for step in steps) + order.budget
    earlier, clock = sum(len(step["picks"]) for step in steps), time.monotonic()
    while True:
        asked = {name: _asked(steps, name) for name in fleet.names}
        shared = gather(fleet, config, run, encoder, asked=asked, selection=order.number)
        skipped = {name: fleet.members[name].samples - shared.pool[name] for name in fleet.names}
        worth = None
        if config.selection.shares == "auto":
            task = Task(
                encoder.digest, MAIN, method, asked, dict.fromkeys(fleet.names, 0), skipped, order.number
            )  # fmt: skip
            worth = site_worth(fleet, config, task, shared.dimension, shared.embeddings, total)
        wanted = _division(fleet, config, steps, skipped, total, worth)
        choice = Choice(
            MAIN, method, coordination, asked, wanted, selection_seed(config, total), order.number, skipped, earlier
        )  # fmt: skip
        try:
            picks, measured = _pick(fleet, config, run, encoder, shared, choice)
            break
        except CofalError:
            lost = [name for name in fleet.names if name in fleet.missed]
            if not lost or fleet.min_clients is None or len(fleet.names) - len(lost) < fleet.min_clients:
                raise
            for name in lost:  # the others choose anew; who is back later catches up with its share
                del fleet.members[name]
    numbered = [{"rank": rank, **pick} for rank, pick in enumerate(picks, start=earlier)]
    return {
        "number": order.number, "budget": total, "more": order.budget, "method": method, "coordination": coordination,
        "picks": numbered, "skipped": {**_skipped(steps), **skipped}, "missing": dict(fleet.missed),
        # Picks from aggregates the sites have noted themselves.
        "told": fleet.names if any("id" not in pick for pick in numbered) else [],
        "seconds": time.monotonic() - clock, **measured,
    }  # fmt: skip


def _pick(
    fleet: Fleet, config: Config, run: RunDir, encoder: Encoder, shared: Shared, choice: Choice
) -> tuple[list[Pick], Measured]:
    if choice.coordination in config.selection.seeing:
        return choose_centrally(fleet, config, shared, choice, shared.known)
    return choose_at_sites(fleet, config, run, encoder, shared.dimension, choice)


def _division(
    fleet: Fleet,
    config: Config,
    steps: Steps,
    skipped: Mapping[str, int],
    total: int,
    worth: Sequence[float] | None = None,
) -> dict[str, int]:
    """By site, how many samples to ask for now: so many that `total` are asked and not skipped, over all sites.

    A site that is away counts with what it was asked; what it would get now goes to the others, and it catches up with
    its share in later selections.
    """
    gone = {**_skipped(steps), **skipped}
    everyone = {pick["client"] for step in steps for pick in step["picks"]} | set(fleet.names)
    standing = {name: _asked(steps, name) - gone.get(name, 0) for name in everyone}
    more = total - sum(standing.values())
    given = [standing[name] for name in fleet.names]
    room = [member.samples - member.known_labels - skipped[name] for name, member in fleet.members.items()]
    seats = divide(sum(given) + more, share_weights(config, fleet, worth), room, given)
    return {name: seat - had for name, seat, had in zip(fleet.names, seats, given, strict=True)}


def tell_sites(fleet: Fleet, run: RunDir, steps: Steps) -> None:
    """Tell every site that is here the picks it was not told yet, its own and no others; telling again changes nothing.

    A site that does not answer is told when it is back, at the latest before the next selection.
    """
    contents = {}
    for name in fleet.names:
        due = [step for step in steps if name not in step["told"]]
        ids = [pick["id"] for step in due for pick in step["picks"] if pick["client"] == name]
        if ids:
            before = _asked(steps[: steps.index(due[0])], name)
            last = {key: due[-1][key] for key in ("method", "coordination")}
            last |= {"decision": due[-1]["auto"]["told"]} if "auto" in due[-1] else {}
            told = {"track": MAIN, "ids": ids, "asked": before, "selection": due[-1]["number"], **last}
            contents[name] = m.pack(config=told)
    if contents:
        fleet.phase = "assign"
        counts = fleet.ask(m.ASSIGN, contents, _counts)
        fleet.standing.labels(counts)
        for step in steps:
            step["told"] = sorted({*step["told"], *counts})
        _write_steps(run, steps)


def ask_progress(fleet: Fleet) -> dict[str, dict[str, int]]:
    """By site: how many samples were asked, and of those labelled and skipped."""
    fleet.phase = "progress"
    content = m.pack(config={"track": MAIN})
    counts = fleet.ask(m.PROGRESS, dict.fromkeys(fleet.names, content), _counts)
    fleet.standing.labels(counts)
    return counts


def train_now(fleet: Fleet, config: Config, run: RunDir, encoder: Encoder, order: Order, test: Any) -> dict[str, Any]:
    """Training number `order.number` on the labels that are there now: done once, then read back."""
    done = [cell for cell in cells(run) if cell["training"] == order.number]
    if not done:
        steps = read_steps(run)
        tell_sites(fleet, run, steps)
        last = (
            Order("select", 0, method=steps[-1]["method"], coordination=steps[-1]["coordination"]) if steps else order
        )
        shared = gather(fleet, chosen(config, last), run, encoder)
        counts = ask_progress(fleet)
        for name, each in counts.items():
            log.info("%s: %d of %d asked samples are labelled, %d skipped", name, *_told(each))
        summed = {key: sum(each[key] for each in counts.values()) for key in COUNTS}
        cell = {
            "method": last.method, "coordination": last.coordination, "budget": summed["labelled"], "track": MAIN,
            "training": order.number, "selection": len(steps), "sites": counts,
            **{key: summed[key] for key in ("asked", "skipped")},
        }  # fmt: skip
        examiner = Examiner(fleet, config, encoder, test)
        done = [train_cell(fleet, config, run, encoder, shared.dimension, examiner, cell)]
    write_json(run.results, _curve(run))
    return done[0]


def read_steps(run: RunDir) -> Steps:
    """The selections so far."""
    remedy = "restore it from a backup: without it the sites would be asked anew"
    found: Steps = read_json(run.picks(MAIN), remedy)["steps"] if run.picks(MAIN).exists() else []
    return found


def _write_steps(run: RunDir, steps: Steps) -> None:
    write_json(run.picks(MAIN), {"track": MAIN, "steps": steps})


def _curve(run: RunDir) -> list[dict[str, Any]]:
    """All cells as one curve: one method and coordination where all selections had the same."""
    steps = read_steps(run)
    methods, ways = {step["method"] for step in steps}, {step["coordination"] for step in steps}
    name = {
        "method": methods.pop() if len(methods) == 1 else "several methods",
        "coordination": ways.pop() if len(ways) == 1 else "central",
    }
    return [{**cell, **name} for cell in cells(run)]


def _asked(steps: Steps, name: str) -> int:
    return sum(pick["client"] == name for step in steps for pick in step["picks"])


def _skipped(steps: Steps) -> dict[str, int]:
    """What each site had skipped when it last took part in a selection."""
    found: dict[str, int] = steps[-1]["skipped"] if steps else {}
    return found


def _counts(name: str, content: RecordDict) -> dict[str, int]:
    said = m.metrics_of(content)
    counts = {key: said.get(key) for key in COUNTS}
    if not all(isinstance(value, int) and value >= 0 for value in counts.values()):
        raise Unusable(f"its counts are {str(counts)[:80]}")
    found = {key: int(value) for key, value in counts.items() if isinstance(value, int)}
    if found["labelled"] + found["skipped"] > found["asked"]:
        raise Unusable(f"it says that more than all were labelled or skipped: {found}")
    return found


def _told(counts: Mapping[str, int]) -> tuple[int, int, int]:
    return counts["labelled"], counts["asked"], counts["skipped"]


def check_budget(budget: int) -> int:
    """The number of labels of a selection."""
    if budget < 1:
        raise UserError(f"budget {budget} asks for nothing; give the number of labels, 1 or more")
    return budget
