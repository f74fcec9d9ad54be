"""`coordination="auto"`: who chooses together, who only avoids repeating whom, decided from how alike the clients are.

Three degrees for two clients, by their overlap q, freed from what the embedding blurs anyway (`clear_overlap`):
clients of one source choose together, as under central coordination; clients that are partly alike choose alone, but
what the other labelled or picked before counts as labelled; unlike clients ignore each other, as per-client. Why, and
what was tried besides, is told in docs/auto.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cofal.selection.blur import blur
from cofal.selection.kmeans import content_hash
from cofal.selection.overlap import Overlap, cell_counts, measure, number_of_cells, overlap_matrix, resampled
from cofal.selection.pool import Budgets, Picked, Pool

TOGETHER = 0.5  # clear overlap from which clients choose together
PARTLY = 0.3  # clear overlap from which a client heeds what another has labelled
SAMPLE = 20_000  # rows that stand for larger pools when overlap and blur are measured
_CHECKS = 50  # samples of rows drawn again, to see how often the decision stays the same

Choose = Callable[[Pool, Budgets], Picked]


@dataclass(frozen=True)
class Decision:
    """How the clients coordinate, and what that rests on."""

    overlap: Overlap
    blur: float  # overlap that rows of different kinds show in this embedding
    groups: list[list[int]]  # clients that choose together, each group ascending
    heeds: np.ndarray  # (clients, clients) bool, symmetric: partly alike, in different groups
    certainty: float  # share of samples of rows, drawn again, under which the groups come out the same

    @property
    def kind(self) -> str:
        """central, per-client, or mixed."""
        if len(self.groups) == 1:
            return "central"
        return "mixed" if self.heeds.any() or len(self.groups) < len(self.heeds) else "per-client"

    @cached_property
    def clear(self) -> np.ndarray:
        """(clients, clients) overlap freed from blur."""
        return clear_overlap(self.overlap.matrix, self.blur)

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
            "groups": self.groups,
            "heeds": [[int(a), int(b)] for a, b in zip(*np.nonzero(np.triu(self.heeds)))],
            "certainty": round(self.certainty, 3),
        }

    def in_words(self) -> str:
        """The decision as a sentence."""
        low, high = self.overlap.interval
        told = f"overlap {self.overlap.mean:.2f} ({low:.2f} to {high:.2f})"
        if self.kind == "central":
            return f"{told}: the clients are alike and choose together"
        if self.kind == "per-client":
            return f"{told}: the clients are unlike and choose alone"
        shared = ", ".join("+".join(map(str, group)) for group in self.groups if len(group) > 1)
        pairs = int(np.triu(self.heeds).sum())
        parts = [f"together: {shared}"] * bool(shared)
        parts += [f"{pairs} pair{'s' if pairs > 1 else ''} of clients avoid repeating each other"] * bool(pairs)
        return f"{told}: partly alike; {'; '.join(parts)}"


def clear_overlap(matrix: np.ndarray, blurred: float) -> np.ndarray:
    """Overlaps on a scale on which 0 is what rows of different kinds show under this blur, and 1 is one source."""
    clear: np.ndarray = (matrix - blurred) / max(1 - blurred, 1e-9)
    return clear


def decide(pool: Pool, rng: np.random.Generator) -> Decision:
    """Measure the clients of `pool` and settle who chooses with whom."""
    sample = pool.in_memory()
    if pool.n > SAMPLE:
        sample = sample.subset(np.sort(np.argsort(content_hash(sample, rng), kind="stable")[:SAMPLE]))
    counts = cell_counts(sample, number_of_cells(np.bincount(sample.owner, minlength=pool.clients)), rng)
    return settle(counts, blur(sample, rng), rng)


def settle(counts: np.ndarray, blurred: float, rng: np.random.Generator) -> Decision:
    """The decision from the clients' rows in common cells, `counts` (clients, cells), and the embedding's blur."""
    found = measure(counts, rng)
    groups, heeds = _degrees(clear_overlap(found.matrix, blurred))
    if len(counts) == 1:
        return Decision(found, blurred, groups, heeds, 1.0)
    again = [_degrees(each)[0] for each in clear_overlap(overlap_matrix(resampled(counts, _CHECKS, rng)), blurred)]
    return Decision(found, blurred, groups, heeds, sum(each == groups for each in again) / _CHECKS)


def _degrees(clear: np.ndarray) -> tuple[list[list[int]], np.ndarray]:
    """The groups that choose together, and which clients heed which outside their group."""
    groups = _linked(clear, TOGETHER)
    group_of = np.empty(len(clear), np.int64)
    for number, group in enumerate(groups):
        group_of[group] = number
    return groups, (clear >= PARTLY) & (group_of[:, None] != group_of)


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
    """Picks in order: each group by `choose` over its own rows, knowing the labelled rows of those whom it heeds.

    Groups choose one after the other, larger ones first, then the less alike ones. In the order returned they take
    turns, one pick for each of their clients.
    """
    if decision.kind == "central":
        return choose(pool, budgets)
    labeled = pool.labeled.copy()
    found: dict[int, Picked] = {}
    groups, clear = decision.groups, decision.clear
    for number in sorted(range(len(groups)), key=lambda g: (-len(groups[g]), clear[groups[g]].mean(), g)):
        group = groups[number]
        part, rows = _view(pool, labeled, group, np.flatnonzero(decision.heeds[group].any(0)))
        own = np.zeros(pool.clients, np.int64)
        own[group] = budgets.per_client[group]
        picked = choose(part, Budgets((own[group] if part.clients == 1 else own).tolist(), part))
        found[number] = Picked(rows[picked.rows], picked.gains, picked.coverage_loss)
        labeled[found[number].rows] = True
    return _in_turns([found[number] for number in range(len(found))], [len(group) for group in groups])


def _view(pool: Pool, labeled: np.ndarray, group: list[int], heeded: np.ndarray) -> tuple[Pool, np.ndarray]:
    """What a group chooses from: its rows, and the labelled rows of those it heeds; and which rows of the pool."""
    own = np.isin(pool.owner, group)
    rows = np.flatnonzero(own | (labeled & np.isin(pool.owner, heeded)))
    if len(group) == 1 and len(rows) == own.sum():
        return pool.client(group[0]), rows
    part = pool.subset(rows)
    part.labeled = labeled[rows]
    return part, rows


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
