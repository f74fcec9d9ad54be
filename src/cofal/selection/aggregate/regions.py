"""What a client of FederatedProbCover works out from its rows: balls, regions of uncovered samples, nearest samples.

A region is the set of uncovered samples in the ball around one of them. Its centroid, as a unit vector in half
precision, is what leaves the client. Rows are worked on in the order of their content, so that nothing depends on how a
client happens to store them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from cofal.selection.aggregate.balls import Balls, balls_of
from cofal.selection.aggregate.cells import canonical, told_sums
from cofal.selection.aggregate.exchange import Holder
from cofal.selection.kernels import TopHat, squared_distances_serial

GROWTH = 1.1  # from one level of radii to the next
LEVELS = 9  # radii delta, 1.1 delta, ..., 2.14 delta
_TOGETHER = 3  # levels whose balls are worked out at once: they share the distances, which are most of the work
_TILE = 1024
_PAIRS = 2**22  # distances in memory at once
_CLOSE = 1e-5  # squared distances of a matrix product closer than this are compared again in float64


def radius_of(delta: float, level: int) -> float:
    """The radius of a region's ball; regions too small for `delta` are looked for at the next levels."""
    return delta * GROWTH**level


def centers_of(sums: np.ndarray) -> np.ndarray:
    """(r, d) float16: sums of rows as directions, rounded as they are sent. A sum of zero stays zero."""
    norms = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    return (sums / np.where(norms > 0, norms, 1)).astype(np.float16)


def received(centers: np.ndarray) -> np.ndarray:
    """(r, d) float32 unit rows: the centres as everybody reads them, whoever sent them."""
    exact = centers.astype(np.float64)
    norms = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
    return np.asarray((exact / np.where(norms > 0, norms, 1)).astype(np.float32))


class Rows:
    """A client's rows in the order of their content, with what is worth keeping between two questions."""

    def __init__(self, holder: Holder) -> None:
        self.x, self.taken, self.order = canonical(holder)  # (n, d) float32; (n,) bool; (n,) positions at the client
        self.holder, self.cache = holder, holder.cache
        self.n, self.d = self.x.shape

    @property
    def secret(self) -> bytes:
        """A key that only who has all of the client's rows can know."""
        if "secret" not in self.cache:
            self.cache["secret"] = hashlib.sha256(self.x.tobytes()).digest()
        key: bytes = self.cache["secret"]
        return key

    def inside(
        self, centers: np.ndarray, levels: np.ndarray, delta: float, among: np.ndarray | None = None
    ) -> np.ndarray:
        """(n, r) bool, or (len(among), r): which rows are in the ball of which centre; exact at the edge."""
        units = torch.from_numpy(self.x if among is None else self.x[among])
        order = np.argsort(levels, kind="stable")  # balls of one radius side by side
        found = np.zeros((len(units), len(centers)), dtype=bool)
        first = 0
        for level, count in zip(*np.unique(levels, return_counts=True)):
            ball = TopHat(radius_of(delta, int(level)), self.d)
            middles = torch.from_numpy(received(centers[order[first : first + count]]))
            step = max(1, _PAIRS // int(count))
            for start in range(0, len(units), step):
                found[start : start + step, first : first + count] = ball.tile(units[start : start + step], middles) > 0
            first += count
        return found if np.all(order[1:] > order[:-1]) else found[:, np.argsort(order)]

    def covered(self, centers: np.ndarray, levels: np.ndarray, delta: float, lasting: int) -> np.ndarray:
        """(n,) bool: which rows are in the ball of any centre.

        Remembers what the first `lasting` cover: the next list begins with those.
        """
        key = ("covered", delta)
        count, digest, mask = self.cache.get(key, (0, b"", np.zeros(self.n, dtype=bool)))
        if count > lasting or digest != _digest(centers[:count], levels[:count]):
            count, mask = 0, np.zeros(self.n, dtype=bool)
        mask = mask.copy()
        self._cover(mask, centers[count:lasting], levels[count:lasting], delta)
        self.cache[key] = (lasting, _digest(centers[:lasting], levels[:lasting]), mask.copy())
        self._cover(mask, centers[lasting:], levels[lasting:], delta)
        return np.array(mask)

    def _cover(self, mask: np.ndarray, centers: np.ndarray, levels: np.ndarray, delta: float) -> None:
        """Mark in `mask` (n,) the rows in the ball of any centre."""
        rest = np.flatnonzero(~mask)
        mask[rest] = self.inside(centers, levels, delta, rest).any(axis=1)

    def balls(self, delta: float, level: int) -> Balls:
        """The balls around the client's own rows at a level's radius, worked out together with the levels beside it.

        They take a bit a pair of rows: those of one `delta` are kept.
        """
        kept, known = self.cache.get("balls", (None, {}))
        if kept != delta:
            known = {}
        if level not in known:
            first = level - level % _TOGETHER
            radii = [radius_of(delta, each) for each in range(first, min(first + _TOGETHER, LEVELS))]
            known |= dict(enumerate(balls_of(self.x, radii), first))
            self.cache["balls"] = delta, known
        balls: Balls = known[level]
        return balls

    def sums(self, regions: Sequence[np.ndarray], least: int) -> np.ndarray:
        """(r, d) sums of the rows of each region as they leave: in steps, or exact where `least` is 1."""
        sums = np.zeros((len(regions), self.d))
        for place, members in enumerate(regions):
            sums[place] = self.x[members].sum(axis=0, dtype=np.float64)
        return told_sums(self.holder, sums, least)

    def around(self, rows: np.ndarray, level: int, delta: float) -> list[np.ndarray]:
        """The rows in the ball around each of `rows`, ascending."""
        ball = TopHat(radius_of(delta, level), self.d)
        found: list[np.ndarray] = []
        for start in range(0, len(rows), _TILE):
            part = ball.tile(torch.from_numpy(self.x[rows[start : start + _TILE]]), torch.from_numpy(self.x))
            found += [np.flatnonzero(row > 0) for row in part]
        return found

    def nearest(self, centers: np.ndarray, free: np.ndarray, often: int) -> tuple[np.ndarray, np.ndarray]:
        """The free row closest to each of `centers` (r, d) float16, of equally close ones the first; and its distance.

        A row serves `often` different centres at most, the first in the list, and none twice. Without a free row left:
        -1, infinitely far.
        """
        found, distances = np.full(len(centers), -1, dtype=np.int64), np.full(len(centers), np.inf, dtype=np.float32)
        units, used = received(centers), np.zeros(len(free), dtype=np.int64)
        before: dict[bytes, list[int]] = {}
        for start in range(0, len(centers), _TILE):
            part = torch.from_numpy(units[start : start + _TILE])
            for place, near in enumerate(torch.mm(part, torch.from_numpy(self.x).T).numpy(), start):
                served = before.setdefault(units[place].tobytes(), [])
                near[~free | (used >= often)] = -np.inf
                near[served] = -np.inf
                if len(near) == 0 or near.max() == -np.inf:
                    continue
                rows = np.flatnonzero(near >= near.max() - _CLOSE)
                squared = squared_distances_serial(self.x, units, rows, np.full(len(rows), place))
                best = int(rows[np.argmin(squared)])
                found[place], distances[place] = best, np.sqrt(squared.min())
                served.append(best)
                used[best] += 1
        return found, distances


class Sent:
    """The regions a client has let its coordinator see, as sets of rows."""

    def __init__(self, n: int) -> None:
        self._n, self._count = n, 0
        self._sets = np.zeros((64, -(-n // 64)), dtype=np.uint64)  # a bit a row
        self._sizes = np.zeros(64, dtype=np.int64)

    def like(self, members: np.ndarray, least: int) -> np.ndarray | None:
        """The region sent before that differs from this one by the fewest rows, if those are less than `least`.

        Two such regions would give away the rows in which they differ.
        """
        packed = self._packed(members)
        words = np.flatnonzero(packed)
        shared = np.bitwise_count(self._sets[: self._count, words] & packed[words]).sum(axis=1, dtype=np.int64)
        differing = self._sizes[: self._count] + len(members) - 2 * shared
        if differing.min(initial=least) >= least:
            return None
        return np.flatnonzero(np.unpackbits(self._sets[int(differing.argmin())].view(np.uint8), count=self._n))

    def discloses(self, members: np.ndarray, least: int) -> bool:
        """Whether there is a region like this one. One that was sent before is not worth sending again either."""
        return self.like(members, least) is not None

    def __len__(self) -> int:
        return self._count

    def add(self, members: np.ndarray) -> None:
        self.extend(self._packed(members)[None])

    def since(self, count: int) -> np.ndarray:
        """All but the first `count` regions, as bits, for `extend`."""
        return self._sets[count : self._count].copy()

    def extend(self, sets: np.ndarray) -> None:
        while self._count + len(sets) > len(self._sets):
            self._sets = np.concatenate([self._sets, np.zeros_like(self._sets)])
            self._sizes = np.concatenate([self._sizes, np.zeros_like(self._sizes)])
        self._sets[self._count : self._count + len(sets)] = sets
        self._sizes[self._count : self._count + len(sets)] = np.bitwise_count(sets).sum(axis=1, dtype=np.int64)
        self._count += len(sets)

    def _packed(self, members: np.ndarray) -> np.ndarray:
        mask = np.zeros(64 * self._sets.shape[1], dtype=bool)
        mask[members] = True
        return np.packbits(mask).view(np.uint64)


Region = tuple[np.ndarray, int]  # rows, level


def best_regions(
    rows: Rows, uncovered: np.ndarray, wanted: int, least: int, delta: float, top: int, sent: Sent | None
) -> list[Region]:
    """The `wanted` best regions of uncovered samples, greedily: the largest, the largest of what then remains, ...

    None has fewer than `least` samples; where none so large is left at one level's radius, the next level's is tried,
    as long as it is below `top`. With `sent`, regions that would disclose single samples are passed over, and the new
    ones are added to it.
    """
    found: list[Region] = []
    remain = uncovered.copy()
    for level in range(min(top, LEVELS)):
        if len(found) >= wanted or int(remain.sum()) < least:
            break
        balls = rows.balls(delta, level)
        sizes = balls.sizes(remain)
        while len(found) < wanted and sizes[best := int(np.argmax(sizes))] >= least:
            members = balls.members(best, remain)
            if sent is None or not sent.discloses(members, least):
                found.append((members, level))
                if sent is not None:
                    sent.add(members)
            gone = np.zeros(rows.n, dtype=bool)
            gone[members] = True
            sizes -= balls.sizes(gone)
            remain[members] = False
    return found


def labeled_regions(rows: Rows, least: int, delta: float) -> list[Region]:
    """The surroundings of the taken samples: all samples in the ball around each, at the first level with enough."""
    key = ("labeled", least, delta)
    if key in rows.cache:
        return list(rows.cache[key])
    found: list[Region] = []
    sent, rest = Sent(rows.n), np.flatnonzero(rows.taken)
    for level in range(LEVELS):
        balls = rows.around(rest, level, delta)
        for members in balls:
            if len(members) >= least and not sent.discloses(members, least):
                found.append((members, level))
                sent.add(members)
        rest = rest[[len(members) < least for members in balls]] if len(rest) else rest
    rows.cache[key] = found
    return found


def first_covered(
    rows: Rows, uncovered: np.ndarray, centers: np.ndarray, levels: np.ndarray, delta: float
) -> list[np.ndarray]:
    """Which of the `uncovered` rows each of `centers` covers first, in their order: no row is in two of these sets."""
    among = np.flatnonzero(uncovered)
    inside = rows.inside(centers, levels, delta, among)
    first = np.where(inside.any(axis=1), inside.argmax(axis=1), -1) if len(centers) else np.full(len(among), -1)
    return [among[first == place] for place in range(len(centers))]


def centroids(
    rows: Rows, regions: Sequence[Region], least: int, delta: float, exact: bool
) -> tuple[np.ndarray, np.ndarray]:
    """What leaves of some regions: (r, d) float16 centroids and (r,) uint8 levels.

    The centroids are of sums in steps, unless `exact`: two selections may tell of regions that differ by a row. A level
    is raised where fewer than `least` of the region's samples are in the ball around its centroid.
    """
    centers = centers_of(rows.sums([members for members, _ in regions], 1 if exact else least))
    levels = np.zeros(len(regions), dtype=np.uint8)
    for place, (members, level) in enumerate(regions):
        while level < LEVELS - 1:
            if rows.inside(centers[[place]], np.array([level]), delta, members).sum() >= least:
                break
            level += 1
        levels[place] = level
    return centers, levels


def _digest(centers: np.ndarray, levels: np.ndarray) -> bytes:
    return hashlib.sha256(centers.tobytes() + levels.tobytes()).digest()
