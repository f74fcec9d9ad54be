"""The paper's theory of redundancy: how much coverage clients lose by choosing alone, in a space divided into cells.

Throughout, a[k, m] in [0, 1] is the probability that client k picks from cell m (K clients, M cells); clients pick
independently. docs/theory.md has the equations. What is measured on real picks is in `picks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from cofal.errors import UserError


def covered(a: np.ndarray) -> np.ndarray:
    """(M,) c_m = 1 - prod_k (1 - a[k, m]): the probability that some client picks from the cell."""
    reached: np.ndarray = 1 - np.prod(1 - checked(a), axis=0)
    return reached


def expected_coverage(a: np.ndarray) -> float:
    """E Phi of all picks together: the expected number of cells that some client picks from."""
    return float(covered(a).sum())


def local_coverage(a: np.ndarray) -> float:
    """L_K = sum_k E Phi(S_k): coverage counted once for every client that has it."""
    return float(checked(a).sum())


def cell_redundancy(a: np.ndarray) -> np.ndarray:
    """(M,) Delta_m = sum_k a[k, m] - c_m: what the cell adds to the redundancy gap.

    Added up client by client (part 3 of Proposition 1), since the difference itself loses all digits where a is small.
    """
    chances = checked(a)
    total, reached = np.zeros(chances.shape[1]), np.zeros(chances.shape[1])
    for row in chances:
        total += row * reached
        reached += row * (1 - reached)
    return total


def redundancy_gap(a: np.ndarray) -> float:
    """The expected redundancy gap: L_K - E Phi(all picks) = sum_m Delta_m."""
    return float(cell_redundancy(a).sum())


def redundancy_slope(a: np.ndarray) -> np.ndarray:
    """(K, M) dDelta_m / da[j, m] = 1 - prod over k != j of (1 - a[k, m]): never negative."""
    missed = 1 - checked(a)
    before = np.cumprod(np.vstack([np.ones(missed.shape[1]), missed[:-1]]), axis=0)
    after = np.cumprod(np.vstack([np.ones(missed.shape[1]), missed[:0:-1]]), axis=0)[::-1]
    slope: np.ndarray = 1 - before * after
    return slope


def redundancy_increment(a: np.ndarray, newcomer: np.ndarray) -> float:
    """What one more client with probabilities `newcomer` (M,) adds to the gap: sum_m newcomer[m] c_m."""
    return float(checked(newcomer[None])[0] @ covered(a))


def iid_redundancy(a: np.ndarray, clients: int) -> float:
    """The gap of `clients` alike clients, each with probabilities `a` (M,): sum_m K a_m - (1 - (1 - a_m)^K)."""
    return redundancy_gap(np.broadcast_to(a, (clients, len(a))))


def iid_increment(a: np.ndarray, clients: int) -> float:
    """What client number `clients` + 1 of alike ones adds: sum_m a_m (1 - (1 - a_m)^K)."""
    values = checked(a[None])[0]
    return float((values * (1 - (1 - values) ** clients)).sum())


def gap_parts(best: float, a: np.ndarray) -> tuple[float, float]:
    """The expected coordination gap best - E Phi(all picks), where `best` = E Phi*, in its two parts.

    (best - L_K, what local selection loses by covering too little; the redundancy gap.)
    """
    return best - local_coverage(a), redundancy_gap(a)


@dataclass(frozen=True)
class Simulation:
    """Means over random draws, each with its standard error."""

    coverage: float
    coverage_error: float
    redundancy: float
    redundancy_error: float


def simulate(a: np.ndarray, draws: int, rng: np.random.Generator) -> Simulation:
    """Let the clients pick cells `draws` times by the probabilities `a`, and count."""
    chances = checked(a)
    coverage, redundancy = np.empty(draws), np.empty(draws)
    for draw in range(draws):
        hit = rng.random(chances.shape) < chances
        coverage[draw] = hit.any(axis=0).sum()
        redundancy[draw] = hit.sum() - coverage[draw]
    root = np.sqrt(draws)
    return Simulation(
        float(coverage.mean()),
        float(coverage.std(ddof=1) / root),
        float(redundancy.mean()),
        float(redundancy.std(ddof=1) / root),
    )


# --- from cell histograms: counts[k, m] rows of client k lie in cell m

SELECTIONS = ("random", "efficient", "largest")


def hit_probabilities(counts: np.ndarray, budget: int, selection: str) -> np.ndarray:
    """(M,) probability that a client with `counts` (M,) rows in the cells picks from each with `budget` labels.

    random: rows drawn without replacement. efficient: the low-budget ideal, every label in a cell of its own, drawn in
    proportion to the cells' rows (no cell beyond certainty). largest: the same in the largest cells, without chance.
    """
    counts = np.asarray(counts, dtype=np.int64)
    rows = int(counts.sum())
    if not 0 <= budget <= rows:
        raise UserError(f"budget {budget} is not between 0 and the client's {rows} rows; lower it")
    if selection == "random":
        return _drawn(counts, budget)
    if selection == "efficient":
        return _in_proportion(counts, budget)
    if selection == "largest":
        chances = np.zeros(len(counts))
        chances[np.argsort(-counts, kind="stable")[:budget]] = 1
        return chances * (counts > 0)
    raise UserError(f"unknown selection {selection!r}; use one of {', '.join(SELECTIONS)}")


def _drawn(counts: np.ndarray, budget: int) -> np.ndarray:
    """1 - C(n - n_m, b) / C(n, b): the product over draws of (rows outside the cell left) / (rows left)."""
    rows = int(counts.sum())
    outside = (rows - counts).astype(np.float64)
    missed = np.ones(len(counts))
    for draw in range(budget):
        missed *= np.maximum(outside - draw, 0) / (rows - draw)
    return 1 - missed


def _in_proportion(counts: np.ndarray, budget: int) -> np.ndarray:
    """min(1, s counts) with s such that the sum is the budget, or all accessible cells if these are fewer."""
    chances = np.zeros(len(counts))
    open_cells = counts > 0
    left = min(budget, int(open_cells.sum()))
    while left > 0:
        scaled = np.where(open_cells, counts * (left / counts[open_cells].sum()), 0.0)
        full = open_cells & (scaled >= 1)
        if not full.any():
            return chances + scaled
        chances[full] = 1
        open_cells = open_cells & ~full
        left -= int(full.sum())
    return chances


def predicted_redundancy(counts: np.ndarray, budgets: Sequence[int], selection: str) -> float:
    """The redundancy gap that the clients' cell histograms `counts` (K, M) foretell at `budgets` (K,)."""
    return redundancy_gap(np.stack([hit_probabilities(own, int(b), selection) for own, b in zip(counts, budgets)]))


def best_coverage(counts: np.ndarray, budgets: Sequence[int]) -> int:
    """Phi*: the most cells that the clients together can cover, client k spending budgets[k] labels on its own cells.

    The greatest flow from clients (as much as their budgets) to the cells they have rows in (one each).
    """
    accessible = np.asarray(counts) > 0
    clients, cells = accessible.shape
    source, sink = clients + cells, clients + cells + 1
    capacity = np.zeros((sink + 1, sink + 1), dtype=np.int32)
    capacity[source, :clients] = budgets
    capacity[:clients, clients:source] = accessible
    capacity[clients:source, sink] = 1
    return int(maximum_flow(csr_array(capacity), source, sink).flow_value)


def checked(a: np.ndarray) -> np.ndarray:
    """`a` as float64, or a clear refusal."""
    values = np.asarray(a, dtype=np.float64)
    if values.ndim != 2 or not ((values >= 0) & (values <= 1)).all():
        raise UserError(f"probabilities must be a (clients, cells) array within 0 and 1, not of shape {values.shape}")
    return values
