"""`coordination="auto"`: who chooses with whom, decided from how alike the clients are and how far rows are blurred.

Choosing together is worth the more, the more truly alike the clients are, and harms as far as rows of different kinds
lie close to each other. Where it pays for all, all choose together, as under central coordination; else only clients of
one source do, and the others choose alone, as per-client. Why, and what was tried besides, is told in docs/auto.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cofal.selection.blur import blur
from cofal.selection.kmeans import content_hash
from cofal.selection.overlap import (
    Overlap,
    cell_counts,
    mean_of_pairs,
    measure,
    number_of_cells,
    overlap_matrix,
    resampled,
)
from cofal.selection.pool import Budgets, Picked, Pool

HARMLESS = 0.12  # overlap between unlike rows that choosing together bears, whatever the clients
WORTH = 0.2  # how much more of it is borne for each unit of clear overlap
ONE_SOURCE = 0.8  # clear overlap from which some clients choose together where all of them should not
SAMPLE = 20_000  # rows that stand for larger pools when overlap and blur are measured
_CHECKS = 50  # samples of rows drawn again, to see how often the decision stays the same
_TOLD_ALIKE = 0.2  # clear overlap from which clients are called alike in words

Choose = Callable[[Pool, Budgets], Picked]


@dataclass(frozen=True)
class Decision:
    """How the clients coordinate, and what that rests on."""

    overlap: Overlap
    blur: float  # overlap that rows of different kinds show in this embedding
    groups: list[list[int]]  # clients that choose together, each group ascending
    certainty: float  # share of samples of rows, drawn again, under which the groups come out the same

    @property
    def kind(self) -> str:
        """central, per-client, or mixed."""
        if len(self.groups) == 1:
            return "central"
        return "mixed" if len(self.groups) < sum(map(len, self.groups)) else "per-client"

    @cached_property
    def clear(self) -> np.ndarray:
        """(clients, clients) overlap freed from blur."""
        return clear_overlap(self.overlap.matrix, self.blur)

    @property
    def margin(self) -> float:
        """By how much choosing together, all of them, pays (above 0) or harms (below)."""
        return float(together_margin(mean_of_pairs(self.clear), self.blur))

    @property
    def margin_error(self) -> float:
        """Standard error of `margin` from that of the overlap."""
        return self.overlap.error * (WORTH + self.blur) / (1 - self.blur)

    def as_dict(self) -> dict[str, object]:
        """Plain numbers and lists, for files and machines."""
        low, high = self.overlap.interval
        return {
            "decision": self.kind,
            "overlap": round(self.overlap.mean, 4),
            "overlap_error": round(self.overlap.error, 4),
            "overlap_interval": [round(low, 4), round(high, 4)],
            "overlap_matrix": np.round(self.overlap.matrix, 4).tolist(),
            "blur": round(self.blur, 4),
            "margin": round(self.margin, 4),
            "groups": self.groups,
            "certainty": round(self.certainty, 3),
        }

    def in_words(self) -> str:
        """The decision as a sentence."""
        low, high = self.overlap.interval
        told = f"overlap {self.overlap.mean:.2f} ({low:.2f} to {high:.2f})"
        if self.kind == "central" and mean_of_pairs(self.clear) >= _TOLD_ALIKE:
            return f"{told}: the clients are alike and choose together"
        if self.kind == "central":
            return f"{told}: the clients are unlike, but the embedding tells them apart; they choose together"
        if self.kind == "per-client":
            return f"{told}: the clients are unlike and choose alone"
        shared = ", ".join("+".join(map(str, group)) for group in self.groups if len(group) > 1)
        return f"{told}: some clients are alike; together: {shared}; the others alone"


def clear_overlap(matrix: np.ndarray, blurred: float) -> np.ndarray:
    """Overlaps on a scale on which 0 is what rows of different kinds show under this blur, and 1 is one source."""
    clear: np.ndarray = (matrix - blurred) / max(1 - blurred, 1e-9)
    return clear


def together_margin(clear: np.ndarray, blurred: float) -> np.ndarray:
    """What choosing together is worth beyond what it harms; above 0 it pays. `clear` may have any shape.

    The harm is the overlap that is only blur: a label at one client then counts for rows of another kind at the other.
    """
    margin: np.ndarray = HARMLESS + WORTH * np.asarray(clear) - blurred * (1 - np.asarray(clear))
    return margin


def decide(pool: Pool, rng: np.random.Generator) -> Decision:
    """Measure the clients of `pool` and settle who chooses with whom."""
    sample = pool.in_memory()
    if pool.n > SAMPLE:
        sample = sample.subset(np.sort(np.argsort(content_hash(sample, rng), kind="stable")[:SAMPLE]))
    counts = cell_counts(sample, number_of_cells(np.bincount(sample.owner, minlength=pool.clients)), rng)
    return settle(counts, blur(sample, rng), rng)


def settle(counts: np.ndarray, blurred: float, rng: np.random.Generator, least: float = -np.inf) -> Decision:
    """The decision from the clients' rows in common cells, `counts` (clients, cells), and the embedding's blur.

    `least` is a clear overlap below which choosing together is not worth its cost, however little it harms.
    """
    found = measure(counts, rng)
    groups = _groups(clear_overlap(found.matrix, blurred), blurred, least)
    if len(counts) == 1:
        return Decision(found, blurred, groups, 1.0)
    again = clear_overlap(overlap_matrix(resampled(counts, _CHECKS, rng)), blurred)
    same = sum(_groups(each, blurred, least) == groups for each in again)
    return Decision(found, blurred, groups, same / _CHECKS)


def _groups(clear: np.ndarray, blurred: float, least: float) -> list[list[int]]:
    """The clients that choose together: all of them, or those of one source."""
    pays = max((blurred - HARMLESS) / (blurred + WORTH), least)  # the clear overlap at which the margin is 0
    together = _linked(clear, pays)
    return together if len(together) == 1 else _linked(clear, max(pays, ONE_SOURCE))


def _linked(likeness: np.ndarray, least: float) -> list[list[int]]:
    """Average linkage: join the two groups of the greatest mean likeness while it is at least `least`."""
    groups = [[client] for client in range(len(likeness))]
    while len(groups) > 1:
        means = np.array([[likeness[np.ix_(a, b)].mean() for b in groups] for a in groups])
        np.fill_diagonal(means, -np.inf)
        first, second = sorted(divmod(int(means.argmax()), len(groups)))
        if means[first, second] < least:
            break
        groups[first] = sorted(groups[first] + groups.pop(second))
    return sorted(groups)


def choose_by(decision: Decision, pool: Pool, budgets: Budgets, choose: Choose) -> Picked:
    """Picks in order: each group by `choose` over its own rows.

    In the order returned groups take turns, one pick for each of their clients.
    """
    if decision.kind == "central":
        return choose(pool, budgets)
    found = []
    for group in decision.groups:
        rows = np.flatnonzero(np.isin(pool.owner, group))
        if len(group) == 1:
            part, own = pool.client(group[0]), budgets.per_client[group]
        else:
            part, own = pool.subset(rows), np.zeros(pool.clients, np.int64)
            own[group] = budgets.per_client[group]
        picked = choose(part, Budgets(own.tolist(), part))
        found.append(Picked(rows[picked.rows], picked.gains, picked.coverage_loss))
    return _in_turns(found, [len(group) for group in decision.groups])


def _in_turns(parts: list[Picked], clients: list[int]) -> Picked:
    """All picks in one order: in every turn each part places as many as it has clients."""
    sizes = [len(part.rows) for part in parts]
    turn = np.concatenate([np.arange(size) // count for size, count in zip(sizes, clients)])
    order = np.lexsort((np.repeat(np.arange(len(parts)), sizes), turn))
    gains = [part.gains for part in parts if part.gains is not None]
    losses = [part.coverage_loss for part in parts if part.coverage_loss is not None]
    return Picked(
        np.concatenate([part.rows for part in parts])[order],
        np.concatenate(gains)[order] if len(gains) == len(parts) else None,
        max(losses, default=None),
    )
