"""K-means on a pool that is read in tiles; what is done with the clusters lives with whoever asks for them.

Why our own: scikit-learn's needs the whole set as one float array and its clusters change with the order of the rows.
This one reads a large pool in tiles, skips rows whose cluster cannot have changed (Hamerly's bounds), and gives the
same clusters for a seed whatever the number of threads and the order of the rows: random draws go over rows sorted by a
hash of their content, every sum has a fixed order, and a nearest centre too close to call in float32 is decided in
float64. The compiled parts run on one thread: they are short, and a second pool of threads beside torch's costs more
than it brings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
import torch

from cofal.errors import UserError
from cofal.selection.pool import Pool

TILE = 4096  # rows read at once
SCORES = 2_000_000  # numbers in a tile of scores, rows x centres: few centres, long tiles
LANES = 16  # centres are padded to a multiple of this, the width that a matrix product is made for: up to 1.4x faster
SEED_ROWS, SEED_ROWS_PER_CLUSTER = 2048, 20  # k-means++ draws from a sample of the larger of the two
GATHERING = 40  # picking a row out of a tile costs about as much as comparing it with this many centres
SETTLED = 5e-3  # the iterations end when no larger share of the rows changes cluster; costs 0.1 % of the inertia
_FAR = 1e30  # the score of a centre that is only padding
TIE = 1e-12  # squared distances closer than this are equal: the lowest cluster wins


@dataclass(frozen=True)
class Clustering:
    """Which cluster each row is in, and where the clusters are."""

    labels: np.ndarray  # (n,) int32
    centers: np.ndarray  # (k, d) float64; every row's label is its nearest centre
    iterations: int

    @property
    def sizes(self) -> np.ndarray:
        """(k,) int64 rows in each cluster; 0 only where the pool has fewer distinct rows than clusters."""
        return np.bincount(self.labels, minlength=len(self.centers))


def kmeans(
    pool: Pool, k: int, rng: np.random.Generator, *, max_iterations: int = 100, by: Pool | None = None
) -> Clustering:
    """Cluster the rows of `pool` into `k` groups: greedy k-means++ on a sample, then Lloyd's iterations on all rows.

    The content of the same rows of `by` shuffles them where the last digits of `pool` may differ from run to run.
    Stops when at most 5 rows in a thousand change cluster, or after `max_iterations`; every row is then in the
    cluster of its nearest centre.
    """
    if not 1 <= k <= pool.n:
        raise UserError(f"cannot form {k} clusters of {pool.n} samples; ask for 1 to {pool.n} clusters")
    pool = pool.in_memory()
    order = np.argsort(content_hash(pool if by is None else by, rng), kind="stable")
    seeds = pool.rows(order[: max(SEED_ROWS, SEED_ROWS_PER_CLUSTER * k)])
    centers = _plus_plus(seeds.cpu().numpy(), k, rng)
    return _lloyd(pool, centers, max_iterations)


def squared_distances(pool: Pool, labels: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """(n,) float64 squared distance of each row to the centre of its cluster; their sum is the inertia."""
    squares = np.empty(pool.n)
    for start in range(0, pool.n, TILE):
        x = pool.tile(start, min(start + TILE, pool.n)).cpu().double().numpy()
        x -= centers[labels[start : start + TILE]]
        squares[start : start + TILE] = (x * x).sum(1)
    return squares


def content_hash(pool: Pool, rng: np.random.Generator) -> np.ndarray:
    """(n,) uint64 random number of each row that depends on its values alone, not on where it stands.

    Sorting by it shuffles the rows the same way however clients and samples are ordered.
    """
    salt = rng.integers(2**63, dtype=np.uint64)
    hashes = np.empty(pool.n, np.uint64)
    for start in range(0, pool.n, TILE):
        x = pool.tile(start, min(start + TILE, pool.n)).cpu().numpy()
        hashes[start : start + TILE] = _hash_rows(x.view(np.uint32), salt)
    return hashes


def some_rows(pool: Pool, most: int, rng: np.random.Generator) -> Pool:
    """The pool, or of a larger one `most` rows: the same however clients and samples are ordered."""
    if pool.n <= most:
        return pool
    return pool.subset(np.sort(np.argsort(content_hash(pool, rng), kind="stable")[:most]))


def _lloyd(pool: Pool, centers: np.ndarray, max_iterations: int) -> Clustering:
    """Alternate assignment and means from `centers` (k, d); ends on an assignment, so that labels fit the centres."""
    n, k = pool.n, len(centers)
    labels = np.full(n, -1, np.int32)
    upper, lower = np.full(n, np.inf, np.float32), np.zeros(n, np.float32)  # distance to the own, to any other centre
    sums, counts = np.zeros_like(centers), np.zeros(k, np.int64)
    room = _Room.of(pool, k)
    for iteration in range(1, max_iterations + 1):
        rows = np.flatnonzero(upper >= lower)
        if iteration > 1:
            _tighten(pool, rows, labels, centers, upper)
            rows = rows[upper[rows] >= lower[rows]]
        if len(rows) * (k + GATHERING) > n * k:
            rows = np.arange(n)
        found, upper[rows], lower[rows] = _nearest(pool, rows, centers, room)
        changed = found != labels[rows]
        moved, before, after = rows[changed], labels[rows[changed]], found[changed]
        labels[moved] = after
        if len(moved) <= SETTLED * n or iteration == max_iterations:
            break
        for start in range(0, len(moved), TILE):
            span = slice(start, start + TILE)
            _transfer(pool.rows(moved[span]).cpu().numpy(), before[span], after[span], sums, counts)
        means = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
        if counts.min() == 0:
            _refill_empty(pool, labels, means, np.flatnonzero(counts == 0))
        shift = np.sqrt(((means - centers) ** 2).sum(1)) + 1e-6  # the added bit outweighs rounding of the bounds
        centers = means
        others = np.full(k, shift.max())  # the farthest that any centre but the own has moved
        if k > 1:
            others[shift.argmax()] = np.partition(shift, -2)[-2]
        upper += shift[labels].astype(np.float32)
        lower -= others[labels].astype(np.float32)
    return Clustering(labels, centers, iteration)


def _tighten(pool: Pool, rows: np.ndarray, labels: np.ndarray, centers: np.ndarray, upper: np.ndarray) -> None:
    """Set `upper` of `rows` to their distance to their own centre: one product each, and many need no others."""
    single = centers.astype(np.float32)
    for start in range(0, pool.n, TILE):
        first, last = np.searchsorted(rows, (start, start + TILE))
        if first < last:
            x = pool.tile(start, min(start + TILE, pool.n)).cpu().numpy()
            _own_distance(x, start, rows[first:last], labels, single, upper, _doubt(pool.d))


def _doubt(d: int) -> float:
    """More than float32 rounding can do to a squared distance of `d` products, norms at most 1."""
    return 8 * d * 2.0**-24


@dataclass(frozen=True)
class _Room:
    """Memory for the tiles of an assignment, taken once: fresh memory for each would cost as much as its product."""

    scores: torch.Tensor  # (tile, k padded to LANES)
    rows: torch.Tensor  # (tile, d)

    @staticmethod
    def of(pool: Pool, k: int) -> _Room:
        width = -(-k // LANES) * LANES
        length = min(max(TILE, min(SCORES // width, 4 * TILE)), pool.n)
        return _Room(torch.empty(length, width, device=pool.device), torch.empty(length, pool.d, device=pool.device))


def _nearest(
    pool: Pool, rows: np.ndarray, centers: np.ndarray, room: _Room
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exact nearest of `centers` (k, d) to each of `rows`: labels (m,) int32, and float32 bounds on two distances.

    The bounds are from above on the distance to that centre, from below on the distance to any other.
    """
    labels = np.empty(len(rows), np.int32)
    upper, lower = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
    norms = (centers**2).sum(1)
    k, width = len(centers), room.scores.shape[1]
    factors, offsets = torch.zeros(pool.d, width), torch.full((width,), _FAR)
    factors[:, :k], offsets[:k] = torch.from_numpy(-2 * centers.T), torch.from_numpy(norms)
    factors, offsets = factors.to(pool.device), offsets.to(pool.device)
    doubt = _doubt(pool.d)
    length = len(room.scores)
    for start in range(0, len(rows), length):
        span = slice(start, start + length)
        if len(rows) < pool.n:
            x = pool.rows(rows[span], out=room.rows)
        else:
            x = pool.tile(start, min(start + length, pool.n))
        scores = torch.addmm(offsets, x, factors, out=room.scores[: len(x)])  # squared distances less |x|^2 = 1
        labels[span], best, second = _best_two(scores)
        unsure = np.flatnonzero(second - best <= doubt)
        if len(unsure):
            exact = norms - 2 * (x[unsure].cpu().double().numpy() @ centers.T)
            labels[start + unsure] = (exact <= exact.min(1, keepdims=True) + TIE).argmax(1)
        upper[span] = np.sqrt(np.maximum(1 + best + doubt, 0))
        lower[span] = np.sqrt(np.maximum(1 + second - doubt, 0))
    return labels, upper, lower


def _best_two(scores: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each row of `scores` (m, k): where the smallest is, the smallest, the second smallest."""
    if scores.device.type == "cpu":
        return _scan_two(scores.numpy())
    values, index = (part.cpu().numpy() for part in scores.topk(2, largest=False))
    return index[:, 0].astype(np.int32), values[:, 0], values[:, 1]


@numba.njit(cache=True, fastmath=True)
def _scan_two(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_best_two` for the CPU, where torch's topk costs more than the product that made the scores.

    Three plain loops, which the compiler turns into vector instructions, rather than one with branches.
    """
    m, k = scores.shape
    index, first, second = np.empty(m, np.int32), np.empty(m, np.float32), np.empty(m, np.float32)
    most = np.float32(3e38)  # stands for infinity, which this arithmetic rules out
    for i in range(m):
        row = scores[i]
        low = most
        for j in range(k):
            low = min(low, row[j])
        at = 0
        while row[at] != low:
            at += 1
        next_low = most
        for j in range(at):
            next_low = min(next_low, row[j])
        for j in range(at + 1, k):
            next_low = min(next_low, row[j])
        index[i], first[i], second[i] = at, low, next_low
    return index, first, second


def _refill_empty(pool: Pool, labels: np.ndarray, means: np.ndarray, empty: np.ndarray) -> None:
    """Put each empty cluster's mean on a row of its own: the rows farthest from their means, none that sits on it."""
    squares = squared_distances(pool, labels, means)
    farthest = np.argsort(-squares, kind="stable")[: len(empty)]
    farthest = farthest[squares[farthest] > TIE]
    means[empty[: len(farthest)]] = pool.rows(farthest).cpu().double().numpy()


def _plus_plus(x: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Greedy k-means++ on the rows of `x` (m, d): each centre is the best of a few rows drawn by squared distance.

    Returns (k, d) float64.
    """
    columns = np.ascontiguousarray(x.T)
    candidates = np.empty((2 + int(math.log(k)), len(x)), np.float32)
    nearest = np.full(len(x), np.inf, np.float32)  # squared distance to the centres so far
    chosen = [int(rng.integers(len(x)))]
    _closer(columns, x[chosen], nearest, candidates)
    nearest[:] = candidates[0]
    for _ in range(1, k):
        mass = nearest.cumsum(dtype=np.float64)
        drawn = np.searchsorted(mass, rng.random(len(candidates)) * mass[-1], side="right")
        drawn = np.minimum(drawn, len(x) - 1)
        best = int(_closer(columns, x[drawn], nearest, candidates).argmin())
        chosen.append(int(drawn[best]))
        nearest[:] = candidates[best]
    return x[chosen].astype(np.float64)


@numba.njit(cache=True, fastmath={"contract"})
def _closer(columns: np.ndarray, centers: np.ndarray, nearest: np.ndarray, out: np.ndarray) -> np.ndarray:
    """For each of `centers` (t, d): `out` (t, m) gets min(nearest, squared distance to it); returns its sums (t,).

    Not a matrix product: the rounding of one may change with the number of threads, and with it the rows drawn next.
    `columns` is (d, m), so that the inner loop runs over points.
    """
    d, m = columns.shape
    totals = np.zeros(len(centers))
    block = 256
    squares = np.empty((len(centers), block), np.float32)
    for first in range(0, m, block):
        width = min(block, m - first)
        squares[:] = 0
        for j in range(d):
            values = columns[j, first : first + width]
            for c in range(len(centers)):
                center, line = centers[c, j], squares[c]
                for i in range(width):
                    difference = values[i] - center
                    line[i] += difference * difference
        for c in range(len(centers)):
            for i in range(width):
                smaller = min(nearest[first + i], squares[c, i])
                out[c, first + i] = smaller
                totals[c] += smaller
    return totals


@numba.njit(cache=True, fastmath={"reassoc", "contract"})
def _own_distance(
    x: np.ndarray,
    start: int,
    rows: np.ndarray,
    labels: np.ndarray,
    centers: np.ndarray,
    upper: np.ndarray,
    doubt: float,
) -> None:
    """`upper` of each of `rows` becomes a bound from above on its distance to its centre; `x` starts at `start`."""
    for row in rows:
        square = np.float32(0)
        center, point = centers[labels[row]], x[row - start]
        for j in range(x.shape[1]):
            difference = point[j] - center[j]
            square += difference * difference
        upper[row] = math.sqrt(square + doubt)


@numba.njit(cache=True)
def _transfer(x: np.ndarray, before: np.ndarray, after: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> None:
    """Move the rows `x` (m, d) from the sums and counts of clusters `before` (-1: none) to those of `after`."""
    for i in range(len(x)):
        if before[i] >= 0:
            counts[before[i]] -= 1
            for j in range(x.shape[1]):
                sums[before[i], j] -= x[i, j]
        counts[after[i]] += 1
        for j in range(x.shape[1]):
            sums[after[i], j] += x[i, j]


@numba.njit(cache=True)
def _hash_rows(words: np.ndarray, salt: np.uint64) -> np.ndarray:
    hashes = np.empty(len(words), np.uint64)
    for i in range(len(words)):
        h = salt
        for j in range(words.shape[1]):
            h = (h ^ np.uint64(words[i, j])) * np.uint64(0x9E3779B97F4A7C15)
            h ^= h >> np.uint64(29)
        hashes[i] = h
    return hashes
