"""`coordination="auto"`: who chooses with whom, from how alike the clients are and whether they only look alike.

Choosing together is worth the more, the more alike the clients are, and harms as far as they overlap in appearance
only: then a label at one stands for rows of another kind at the other. A selector that can tell kinds apart
(`kinds.py`) chooses for all clients at once and lets a pick count for rows of its own kind; TypiClust does so where
neither end is likely the better one. Else and for others: where choosing together pays for all, all do, as under
central coordination; where not, only clients of one source do, and the others choose alone, as per-client. Why, and
what was tried besides, is told in docs/auto.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cofal.rng import generator
from cofal.selection.closeness import appearance_only, closeness
from cofal.selection.evenness import evened
from cofal.selection.kmeans import some_rows
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
from cofal.selection.remember import once_per_rows

BORNE, WORTH = 0.06, 0.015  # overlap in appearance only that choosing together bears, and more the more it is worth:
# for a unit of likeness, and for every doubling of the clients
WEIGHT = 0.25  # power of the number of clients with which that overlap counts: each pair's is a smaller part of it
BORNE_BLUR, WORTH_BLUR = 0.12, 0.2  # the same where blur stands for it, with more for a unit of likeness
SPREAD, SPREAD_BLUR = 0.025, 0.04  # how far from a margin of 0 either coordination could still win in the trials
ONE_SOURCE = 0.95  # likeness from which some clients choose together where all of them should not
IN_DOUBT = 0.8  # which of central and per-client is better is in doubt where neither is so likely
SAMPLE = 20_000  # rows that stand for larger pools when overlap is measured
_CHECKS = 50  # samples of rows drawn again, to see how often the decision stays the same
_TOLD_ALIKE = 0.3  # overlap from which clients are called alike in words

Choose = Callable[[Pool, Budgets], Picked]


@dataclass(frozen=True)
class Decision:
    """How the clients coordinate, and what that rests on."""

    overlap: Overlap
    harm: float  # overlap of the clients that is appearance only
    margin: float  # by how much choosing together, all of them, pays (above 0) or harms (below)
    margin_error: float  # standard error of `margin`: how far another sample of rows would move it
    groups: list[list[int]]  # clients that choose together, each group ascending
    certainty: float  # share of samples of rows, drawn again, under which the groups come out the same
    spread: float  # of `margin`: how far from 0 either coordination could still win in the trials
    by_kind: bool = False  # all choose at once, each pick for rows of its own kind: groups do not matter

    @property
    def central_wins(self) -> float:
        """How likely central coordination beats per-client.

        From the margin, its error, and how the trials scattered around the point of equality.
        """
        scale = math.hypot(self.spread, self.margin_error)
        return 0.5 * (1 + math.erf(self.margin / (scale * math.sqrt(2))))

    @property
    def in_doubt(self) -> bool:
        """Whether neither central nor per-client coordination is likely the better one."""
        return max(self.central_wins, 1 - self.central_wins) < IN_DOUBT

    @property
    def kind(self) -> str:
        """by-kind, central, per-client, or mixed."""
        if self.by_kind:
            return "by-kind"
        if len(self.groups) == 1:
            return "central"
        return "mixed" if len(self.groups) < sum(map(len, self.groups)) else "per-client"

    def as_dict(self) -> dict[str, object]:
        """Plain numbers and lists, for files and machines."""
        low, high = self.overlap.interval
        return {
            "decision": self.kind,
            "overlap": round(self.overlap.mean, 4),
            "overlap_error": round(self.overlap.error, 4),
            "overlap_interval": [round(low, 4), round(high, 4)],
            "overlap_matrix": np.round(self.overlap.matrix, 4).tolist(),
            "harm": round(self.harm, 4),
            "margin": round(self.margin, 4),
            "margin_error": round(self.margin_error, 4),
            "groups": self.groups,
            "certainty": round(self.certainty, 3),
        }

    def in_words(self) -> str:
        """The decision as a sentence."""
        low, high = self.overlap.interval
        told = f"overlap {min(self.overlap.mean, 1):.2f} ({low:.2f} to {high:.2f})"  # chance may take it beyond 1
        if self.kind == "by-kind":
            return f"{told}: the clients choose together, and each pick counts for samples of its own kind"
        if self.kind == "central" and self.overlap.mean >= _TOLD_ALIKE:
            return f"{told}: the clients are alike and choose together"
        if self.kind == "central":
            return f"{told}: the clients are unlike, but the embedding tells them apart; they choose together"
        if self.kind == "per-client":
            return f"{told}: the clients are unlike and choose alone"
        shared = ", ".join("+".join(map(str, group)) for group in self.groups if len(group) > 1)
        return f"{told}: some clients are alike; together: {shared}; the others alone"


def decision_stream() -> np.random.Generator:
    """Chance in a decision: always the same, so that clients do not change sides from one selection to the next."""
    return generator(0, "auto")


@once_per_rows
def decide(pool: Pool) -> Decision:
    """Measure the clients of `pool` and settle who chooses with whom."""
    rng = decision_stream()
    sample = some_rows(evened(pool).in_memory(), SAMPLE, rng)
    counts = cell_counts(sample, number_of_cells(np.bincount(sample.owner, minlength=pool.clients)), rng)
    seen = closeness(sample, rng)
    harm = float(appearance_only(seen.near, seen.wide))
    margin = float(margin_of(seen.near, seen.wide))
    again = margin_of(seen.near_again, seen.wide_again)
    groups = _groups(seen.likeness, margin)
    likeness_again = (seen.near_again + seen.wide_again) / 2
    same = [_groups(likeness, float(each)) == groups for likeness, each in zip(likeness_again, again)]
    found = measure(counts, rng)
    return Decision(found, harm, margin, float(again.std()), groups, float(np.mean(same)), SPREAD)


def margin_of(near: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """What choosing together is worth beyond what it harms, from overlaps (..., clients, clients) near and wide.

    Above 0 it pays.
    """
    clients = near.shape[-1]
    worth = WORTH * np.log2(clients) * np.minimum(mean_of_pairs(near), 1)
    margin: np.ndarray = BORNE + worth - clients**WEIGHT * appearance_only(near, wide)
    return margin


def by_kind(decision: Decision) -> Decision:
    """The same measurements where the selector tells kinds apart itself."""
    return replace(decision, groups=[list(range(len(decision.overlap.matrix)))], certainty=1.0, by_kind=True)


def settle(counts: np.ndarray, blurred: float, rng: np.random.Generator, least: float = -np.inf) -> Decision:
    """The decision where only the clients' rows in common cells are known, `counts` (clients, cells), and a blur.

    `blurred` is the overlap that rows of different kinds show in this embedding (`blur.py`). `least` is an overlap,
    freed from blur, below which choosing together is not worth its cost, however little it harms.
    """
    found = measure(counts, rng)
    clear = clear_overlap(found.matrix, blurred)
    margin = float(blur_margin(mean_of_pairs(clear), blurred))
    groups = _groups(clear, margin if mean_of_pairs(clear) >= least else -1.0)
    again = clear_overlap(overlap_matrix(resampled(counts, _CHECKS, rng)), blurred)
    means = mean_of_pairs(again)
    margins = blur_margin(means, blurred)
    same = [
        _groups(each, float(value) if mean >= least else -1.0) == groups
        for each, value, mean in zip(again, margins, means)
    ]
    harm = float(blurred * (1 - mean_of_pairs(clear)))
    return Decision(found, harm, margin, float(margins.std()), groups, float(np.mean(same)), SPREAD_BLUR)


def clear_overlap(matrix: np.ndarray, blurred: float) -> np.ndarray:
    """Overlaps on a scale on which 0 is what rows of different kinds show under this blur, and 1 is one source."""
    clear: np.ndarray = (matrix - blurred) / max(1 - blurred, 1e-9)
    return clear


def blur_margin(clear: np.ndarray, blurred: float) -> np.ndarray:
    """What choosing together is worth beyond what it harms, from clear overlaps of any shape; above 0 it pays."""
    margin: np.ndarray = BORNE_BLUR + WORTH_BLUR * np.asarray(clear) - blurred * (1 - np.asarray(clear))
    return margin


def _groups(likeness: np.ndarray, margin: float) -> list[list[int]]:
    """The clients that choose together: all of them where that pays, else those of one source."""
    return [list(range(len(likeness)))] if margin >= 0 else _linked(likeness, ONE_SOURCE)


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


def in_turns(sizes: Sequence[int], clients: Sequence[int]) -> np.ndarray:
    """The order of picks that stand part after part, `sizes` (parts,): in every turn each places one a client."""
    turn = np.concatenate([np.arange(size) // count for size, count in zip(sizes, clients)])
    order: np.ndarray = np.lexsort((np.repeat(np.arange(len(sizes)), sizes), turn))
    return order


def _in_turns(parts: list[Picked], clients: list[int]) -> Picked:
    order = in_turns([len(part.rows) for part in parts], clients)
    gains = [part.gains for part in parts if part.gains is not None]
    losses = [part.coverage_loss for part in parts if part.coverage_loss is not None]
    return Picked(
        np.concatenate([part.rows for part in parts])[order],
        np.concatenate(gains)[order] if len(gains) == len(parts) else None,
        max(losses, default=None),
    )
