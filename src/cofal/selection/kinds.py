"""Kinds of rows, told apart by the embedding and by who holds them.

Rows that lie together need not be of one kind. Where clients differ, who holds a row says more: a row between two kinds
is most likely of the one that its client has many of. So the kinds are a mixture whose components are common to all
clients and whose weights are each client's own. How far weights may differ is read from the counts: clients of one
source get the same ones, and then the kinds follow from the embedding alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cofal.rng import generator
from cofal.selection.auto import decide
from cofal.selection.closeness import closeness
from cofal.selection.evenness import evened
from cofal.selection.kmeans import content_hash, kmeans
from cofal.selection.overlap import mean_of_pairs
from cofal.selection.pool import Pool
from cofal.selection.remember import once_per_rows

ROWS_PER_KIND = (80, 40, 20)  # the divisions whose mean tells how likely two rows are of one kind
MOST_ROWS = 5000  # pools of more rows have no more kinds than one of so many
SAMPLE = 20_000  # rows from which the kinds of larger pools are learnt
SHARPNESS = 10.0  # chances of kinds go with exp(10 cos) of the angle to their centres
ROUNDS = 20
_TILE = 8192
_TINY = 1e-6  # lengths are divided by no less
_NONE = 1e-12  # shares and sums of squares of no more are none
_NEVER = 1e-6  # least share of a client's rows that a kind is taken to have, against its share of all


@dataclass(frozen=True)
class Kinds:
    """Chances of each row to be of each kind, (n, kinds) float32, rows adding up to 1."""

    chances: np.ndarray  # given where the row lies and whose it is
    blind: np.ndarray  # the same kinds, given only where the row lies
    middle: np.ndarray  # (d,) float32: the mean of all rows, from which they are seen


@dataclass(frozen=True)
class Kindred:
    """How likely two rows are of one kind: the product of their rows of `common`, or of `blind` to who holds them."""

    common: np.ndarray  # (n, m) float32
    blind: np.ndarray  # (n, m) float32
    unlike: float  # how unlike the clients are: 0 for one source, 1 without likeness
    middle: np.ndarray  # (d,) float32: the mean of all rows, evened out


@once_per_rows
def kindred(pool: Pool) -> Kindred:
    """The mean of a few divisions into kinds; it depends on the rows alone, so it is the same in every selection."""
    rng, pool = generator(0, "kinds"), evened(pool)
    numbers = [max(min(pool.n, MOST_ROWS) // rows, 1) for rows in ROWS_PER_KIND]
    found = [kinds(pool, number, rng) for number in numbers]
    alike = float(mean_of_pairs(closeness(pool.in_memory(), rng).near))
    return Kindred(
        _side_by_side([each.chances for each in found]),
        _side_by_side([each.blind for each in found]),
        min(max(1 - alike, 0.0), 1.0),
        found[0].middle,
    )


def beside_kinds(pool: Pool) -> Pool:
    """Rows that lie close only if they look alike, are likely of one kind, and it is well for their clients to agree.

    A row is its direction from the middle, evened out, beside its chances of kinds made as long, and a coordinate of
    its client whose square is how likely the clients do better alone.
    """
    found, seen = kindred(pool), evened(pool)
    alone = np.float32(math.sqrt(1 - decide(pool).central_wins))
    parts = []
    for client, (start, stop) in enumerate(pairwise(pool.offsets)):
        away = _seen_from(found.middle, seen.tile(start, stop).cpu().numpy())
        chances = found.common[start:stop]
        holder = np.zeros((stop - start, pool.clients), np.float32)
        holder[:, client] = alone
        parts.append(np.hstack([away, chances / np.linalg.norm(chances, axis=1, keepdims=True), holder]))
    return Pool(parts, device=str(pool.device))


def _side_by_side(divisions: list[np.ndarray]) -> np.ndarray:
    """Chances squared and made to add up to 1 again, which trusts the likelier kinds more, so that products average."""
    sharp = [chances**2 / (chances**2).sum(1, keepdims=True) for chances in divisions]
    common: np.ndarray = np.hstack(sharp) / np.float32(np.sqrt(len(sharp)))
    return common


def kinds(pool: Pool, number: int, rng: np.random.Generator) -> Kinds:
    """Divide the rows of `pool` into `number` kinds, some of which may stay empty.

    Directions are seen from the middle of all rows: trained encoders often leave their rows in one narrow cone, and
    seen from the origin all of them lie in one direction.
    """
    pool = pool.in_memory()
    order = np.argsort(content_hash(pool, rng), kind="stable")[:SAMPLE]  # sums must not depend on where a row stands
    middle = pool.rows(order).cpu().numpy().mean(0, dtype=np.float64).astype(np.float32)
    sample = pool if pool.n <= SAMPLE else pool.subset(np.sort(order))
    x = _seen_from(middle, sample.tile(0, sample.n).cpu().numpy())
    chances = np.eye(number, dtype=np.float32)[kmeans(sample, number, rng).labels]
    for _ in range(ROUNDS):
        centers = chances.T @ x
        centers /= np.maximum(np.linalg.norm(centers, axis=1, keepdims=True), 1e-9)
        scores = SHARPNESS * (x @ centers.T)
        lean = leaning(chances, _chances(scores), sample.offsets)
        chances = _chances(scores + lean[sample.owner])
    known, blind = [], []
    for start in range(0, pool.n, _TILE):
        stop = min(start + _TILE, pool.n)
        scores = SHARPNESS * (_seen_from(middle, pool.tile(start, stop).cpu().numpy()) @ centers.T)
        known.append(_chances(scores + lean[pool.owner[start:stop]]))
        blind.append(_chances(scores))
    return Kinds(np.concatenate(known), np.concatenate(blind), middle)


def _seen_from(middle: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Unit directions of `rows` (n, d) from `middle` (d,); a row in the middle itself has none, and gets zeros."""
    away: np.ndarray = rows - middle
    away /= np.maximum(np.linalg.norm(away, axis=1, keepdims=True), _TINY)
    return away


def _chances(scores: np.ndarray) -> np.ndarray:
    """Rows of `scores` made chances, float32."""
    chances: np.ndarray = np.exp(scores - scores.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    single: np.ndarray = chances.astype(np.float32, copy=False)
    return single


def leaning(chances: np.ndarray, blind: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(clients, kinds) float32 logarithm of how much more of a kind each client has than all together.

    `chances` and `blind` (n, kinds) are those of `Kinds`; the rows of client m are offsets[m] to offsets[m + 1]. The
    blind ones tell by an analysis of variance how much of what the clients' shares differ by is more than chance. So
    far shares are trusted, and for the rest they are those of all: clients of one source lean nowhere.
    """
    trust = _trust(blind, offsets)
    common = chances.mean(0, dtype=np.float64)
    more = np.ones((len(trust), len(common)))
    for client, (start, stop) in enumerate(pairwise(offsets)):
        if trust[client] > 0:
            share = chances[start:stop].mean(0, dtype=np.float64)
            more[client] += trust[client] * (share / np.maximum(common, _NONE) - 1)
    return np.log(np.maximum(more, _NEVER)).astype(np.float32)


def _trust(blind: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """(clients,) part of the variance of each client's mean chances that is not by chance."""
    rows = np.diff(offsets)
    held = rows > 0
    free = len(blind) - int(held.sum())  # degrees of freedom within clients
    common = blind.mean(0, dtype=np.float64)
    within, between = np.zeros(len(common)), np.zeros(len(common))
    for start, stop in pairwise(offsets):
        if start < stop:
            mean = blind[start:stop].mean(0, dtype=np.float64)
            within += ((blind[start:stop] - mean) ** 2).sum(0)
            between += (stop - start) * (mean - common) ** 2
    told = within > _NONE
    if held.sum() < 2 or free < 1 or not told.any():
        return np.zeros(len(rows))
    ratios = (between[told] / (held.sum() - 1)) / (within[told] / free)
    more = max(float(np.average(ratios, weights=common[told])) - 1, 0.0) / rows[held].mean()  # than a row's variance
    trust: np.ndarray = more * rows / (more * rows + 1)
    return trust
