"""FederatedMaxHerding, the clients' half: each answer comes from the client's rows and the question alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cofal.rng import generator
from cofal.selection.aggregate.cells import answer_cells, canonical
from cofal.selection.aggregate.exchange import OFTEN, Arrays, Holder, coarse, fixed
from cofal.selection.aggregate.herding import NONE
from cofal.selection.maxherding import maxherding
from cofal.selection.pool import Budgets, Pool

_FEW = 3  # cosines that are told for each candidate, at least if asked for
_SPARE = 3  # further ones that are looked at, for those that may not be told
_TILE = 512  # rows compared with all candidates at once


def answer(holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> Arrays:
    """A client's part: means of its cells, weighted sums, cosines of its nearest samples, gains, and its picks."""
    if kind == "cells":
        return answer_cells(holder, numbers)
    candidates = arrays["candidates"].astype(np.float32)
    if kind == "shift":
        return _answer_shift(holder, candidates, numbers)
    if kind == "offers":
        return _answer_offers(holder, candidates, numbers)
    if kind == "gains":
        return _answer_gains(holder, candidates, arrays, numbers)
    covering = candidates[arrays["centers"]], arrays["cosines"]
    _settle(holder, candidates[arrays["picks"]], int(arrays["alone"][0]), covering, numbers)
    return {}


def _answer_shift(holder: Holder, candidates: np.ndarray, numbers: Mapping[str, float]) -> Arrays:
    """Kernel-weighted sums of the client's rows around each candidate.

    Nothing is said where the weights are worth fewer than `min_region` rows.
    """
    rows, _, _ = canonical(holder)
    sums = np.zeros(candidates.shape)
    weight, squared = np.zeros(len(candidates)), np.zeros(len(candidates))
    for start in range(0, len(rows), _TILE):
        x = rows[start : start + _TILE]
        values = x @ candidates.T
        values -= 1
        values *= np.float32(numbers["sharpness"])
        np.exp(values, out=values)
        np.minimum(values, 1, out=values)
        sums += values.T @ x
        weight += values.sum(0, dtype=np.float64)
        squared += np.einsum("ij,ij->j", values, values)
    sums[_few(weight, squared, numbers)] = 0
    return {"sums": fixed(sums, int(numbers["bits"]))}


def _few(weight: np.ndarray, squared: np.ndarray, numbers: Mapping[str, float]) -> np.ndarray:
    """Which `weight`, sums of weights w, are worth fewer than `min_region` rows: (sum w)^2 / (sum w^2)."""
    enough: np.ndarray = weight**2 >= numbers["min_region"] * squared * (1 - 1e-6)
    return ~enough  # nor where they are no numbers


def _answer_offers(holder: Holder, candidates: np.ndarray, numbers: Mapping[str, float]) -> Arrays:
    """free (m, depth): the cosines of the client's free rows nearest to each candidate, falling, NONE where there is no
    further one. taken (m,): the largest cosine of its taken rows that have this candidate as their nearest.

    However many are asked for, they are of no more than one in `min_region` samples in all, or a few a candidate. Of
    fewer than `min_region` free rows nothing is told, and of each only its cosines to the nearest candidates.
    """
    rows, taken, _ = canonical(holder)
    least = int(numbers["min_region"])
    most = max(_FEW, len(rows) // (least * max(1, len(candidates))))
    free = np.full((len(candidates), min(int(numbers["depth"]), most)), NONE, np.float32)
    if len(candidates) and np.count_nonzero(~taken) >= least:
        told = _nearest(candidates @ rows[~taken].T, free.shape[1], OFTEN if least > 1 else len(candidates))
        free[:, : told.shape[1]] = told
    covered = np.full(len(candidates), NONE, np.float32)
    cosines = candidates @ rows[taken].T
    np.maximum.at(covered, cosines.argmax(0), cosines.max(0, initial=NONE))
    return {"free": coarse(np.maximum(free, NONE)), "taken": coarse(covered)}


def _nearest(cosines: np.ndarray, depth: int, often: int) -> np.ndarray:
    """(m, at most depth) the largest of each row of `cosines` (m, n), falling, but none of a column more than `often`.

    A column's are told where they are largest; NONE where too few are left.
    """
    looked = min(cosines.shape[1], depth + _SPARE)
    columns = np.argpartition(-cosines, looked - 1, axis=1)[:, :looked]
    near = np.take_along_axis(cosines, columns, axis=1)
    order = np.lexsort((-near.ravel(), columns.ravel()))  # column by column, falling
    sorted_columns = columns.ravel()[order]
    turn = np.arange(len(order)) - np.searchsorted(sorted_columns, sorted_columns)
    near.ravel()[order[turn >= often]] = NONE
    told: np.ndarray = -np.sort(-near, axis=1)[:, :depth]
    return told


def _answer_gains(
    holder: Holder, candidates: np.ndarray, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]
) -> Arrays:
    """What each candidate's offer would add to the coverage of the client's rows, given what covers them already.

    Nothing is said of a gain to which fewer than `min_region` rows contribute, nor through so narrow a kernel that the
    weights around the candidate are worth fewer: nearly all of it would come from one row.
    """
    rows, _, _ = canonical(holder)
    sharpness = np.float32(numbers["sharpness"])
    gains, gaining = np.zeros(len(candidates)), np.zeros(len(candidates), np.int64)
    weight, squared = np.zeros(len(candidates)), np.zeros(len(candidates))
    for start in range(0, len(rows), _TILE):
        cosines = rows[start : start + _TILE] @ candidates.T
        near = cosines[:, arrays["centers"]] * arrays["cosines"]
        best = np.exp(sharpness * (near.max(1, initial=-np.inf) - 1))  # 0 when nothing covers
        cosines *= arrays["offered"]
        cosines -= 1
        cosines *= sharpness
        np.exp(cosines, out=cosines)
        np.minimum(cosines, 1, out=cosines)
        weight += cosines.sum(0, dtype=np.float64)
        squared += np.einsum("ij,ij->j", cosines, cosines)
        cosines -= best[:, None]
        np.maximum(cosines, 0, out=cosines)
        gains += cosines.sum(0, dtype=np.float64)
        gaining += np.count_nonzero(cosines, axis=0)
    gains[(gaining < numbers["min_region"]) | _few(weight, squared, numbers)] = 0
    return {"gains": fixed(gains, int(numbers["bits"]))}


def _settle(
    holder: Holder,
    centers: np.ndarray,
    alone: int,
    covering: tuple[np.ndarray, np.ndarray],
    numbers: Mapping[str, float],
) -> None:
    """The free row nearest to each of `centers` in turn, none twice; then `alone` more by MaxHerding on its rows.

    covering: the directions (c, d) and cosines (c,) of all that covers already, at any client.
    """
    rows, taken, positions = canonical(holder)
    gone = taken.copy()
    picked = []
    for center in centers:
        row = int(np.where(gone, -np.inf, rows @ center).argmax())
        gone[row] = True
        picked.append(row)
    if alone:
        known = _stand_ins(*covering)
        pool = Pool(
            [np.concatenate([np.pad(rows, ((0, 0), (0, 1))), known])],
            [np.concatenate([np.flatnonzero(gone), np.arange(len(rows), len(rows) + len(known))])],
        )
        rng = generator(int(numbers["seed"]), "alone")
        rest = maxherding(pool, Budgets([alone], pool), rng, lengthscale=numbers["lengthscale"])
        picked += rest.rows.tolist()
    holder.picked = positions[np.array(picked, np.int64)]


def _stand_ins(directions: np.ndarray, cosines: np.ndarray) -> np.ndarray:
    """(c, d + 1) unit rows for samples known by direction and cosine: of cosine a t to a row of cosine t to c.

    The rows of the client have 0 in the last place.
    """
    length = np.sqrt(np.maximum(1 - cosines**2, 0))
    return np.concatenate([cosines[:, None] * directions, length[:, None]], axis=1).astype(np.float32)
