"""Whether clients come apart as one looks closer: their overlap among a row's nearest neighbours, few and many.

Clients of one source overlap alike at every scale. Clients of different kinds that an embedding holds close together
overlap at large, and less the closer one looks: what they lose on the way is likeness in appearance only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cofal.selection.kmeans import content_hash
from cofal.selection.overlap import mean_of_pairs
from cofal.selection.pool import Pool

FEW = 20  # neighbours of a row, close up; half of those at large in pools so small that these are less than 40
MANY = 1 / 30  # share of all rows that are its neighbours at large
FEWEST = 3  # neighbours at least
SAMPLE = 2500  # rows of a larger pool that are looked at together, as many as in the trials of docs/auto.md
SAMPLES = 4  # such samples at most, which together hold as many different rows as they can
DRAWS = 50  # of the rows whose neighbours are looked at, for the uncertainty
_BLOCK = 512
_APART = 0.02  # by which clients differ at least: between those who differ less, blur would be told by chance alone
_BLURRED = (-0.5, 1.5)  # beyond, it is chance as well


@dataclass(frozen=True)
class Closeness:
    """Overlaps close up and at large, each as measured and for rows drawn again; diagonals are 1."""

    near: np.ndarray  # (clients, clients) among the 20 nearest rows
    wide: np.ndarray  # (clients, clients) among the nearest thirtieth of all rows
    near_again: np.ndarray  # (draws, clients, clients)
    wide_again: np.ndarray  # (draws, clients, clients)

    @property
    def likeness(self) -> np.ndarray:
        """(clients, clients) mean of both overlaps: 1 only for clients that are one source at every scale."""
        likeness: np.ndarray = (self.near + self.wide) / 2
        return likeness


def closeness(pool: Pool, rng: np.random.Generator) -> Closeness:
    """Look at the rows of `pool`, of a large one at a few samples, the same however clients and rows are ordered."""
    if pool.n <= SAMPLE:
        return _closeness(pool, rng)
    order = np.argsort(content_hash(pool, rng), kind="stable")
    starts = np.linspace(0, pool.n - SAMPLE, min(-(-pool.n // SAMPLE), SAMPLES)).astype(int)
    seen = [_closeness(pool.subset(np.sort(order[start : start + SAMPLE])), rng) for start in starts]
    return Closeness(*(np.mean([getattr(each, part.name) for each in seen], axis=0) for part in fields(Closeness)))


def _closeness(pool: Pool, rng: np.random.Generator) -> Closeness:
    near, wide = _owners(pool, *neighbours(pool.n))
    order = np.argsort(content_hash(pool, rng), kind="stable")  # draws must not depend on where a row stands
    weights = np.empty((DRAWS, pool.n))
    weights[:, order] = rng.multinomial(pool.n, np.full(pool.n, 1 / pool.n), size=DRAWS) if pool.n else 0
    once = np.ones((1, pool.n))
    return Closeness(
        _overlaps(near, pool.owner, once)[0],
        _overlaps(wide, pool.owner, once)[0],
        _overlaps(near, pool.owner, weights),
        _overlaps(wide, pool.owner, weights),
    )


def neighbours(n: int) -> tuple[int, int]:
    """How many of `n` rows are a row's neighbours close up, and how many at large."""
    many = max(int(n * MANY), FEWEST)
    few, others = max(min(FEW, many // 2), FEWEST), max(n - 1, 0)
    return min(few, others), min(many, others)


def appearance_only(near: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """The overlap that is appearance only, from overlaps close up and at large (..., clients, clients).

    Let kinds that the embedding holds together overlap by b at large, by a close up, and the clients truly by q. Then
    they show q + (1 - q) b and q + (1 - q) a. What they lose on the way, as a share of what tells them apart at large,
    is (b - a) / (1 - b): how blurred the embedding is, whatever the clients are. It counts as far as they differ.
    """
    close, large = mean_of_pairs(near), mean_of_pairs(wide)
    blurred = np.clip((large - close) / np.maximum(1 - large, _APART), *_BLURRED)
    appearance: np.ndarray = blurred * (1 - close)
    return appearance


def _owners(pool: Pool, few: int, many: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, clients) each: whose the `few` and the `many` nearest other rows of each row are."""
    rows = pool.tile(0, pool.n).cpu().numpy()
    counts = np.zeros((2, pool.n, pool.clients))
    for start in range(0, pool.n, _BLOCK):
        alike = rows[start : start + _BLOCK] @ rows.T
        own = np.arange(len(alike))
        alike[own, start + own] = -np.inf
        for found, number in zip(counts, (few, many)):
            nearest = np.argpartition(-alike, max(number - 1, 0), axis=1)[:, :number]
            np.add.at(found, (np.repeat(start + own, number), pool.owner[nearest].ravel()), 1)
    return counts[0], counts[1]


def _overlaps(counts: np.ndarray, owner: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(draws, clients, clients): chance that a neighbour is of the other client over that it is of the same one.

    Chances are by row, so that sizes of clients do not matter. `counts` (n, clients) are neighbours of each row by
    client, `weights` (draws, n) say how often each row was drawn. A client of fewer than two rows is like all others.
    """
    clients = counts.shape[1]
    mine = owner[:, None] == np.arange(clients)  # (n, clients)
    sizes = mine.sum(0)
    pairs = np.einsum("wn,ni,nj->wij", weights, mine, counts, optimize=True)
    drawn = weights @ mine  # (draws, clients)
    offered = drawn[:, :, None] * np.maximum(sizes[None, :] - np.eye(clients), 1)
    chance = pairs / np.maximum(offered, 1)
    within = np.einsum("wii->wi", chance)
    expected = (within[:, :, None] + within[:, None, :]) / 2
    few = sizes < 2
    unknown = few[:, None] | few | np.eye(clients, dtype=bool) | (expected <= 0)
    across = (chance + np.swapaxes(chance, 1, 2)) / 2
    found: np.ndarray = np.where(unknown, 1.0, across / np.where(unknown, 1.0, expected))
    return found
