"""FederatedMaxHerding: kernel coverage from means of cells, kernel-weighted sums and summed gains."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.rng import generator
from cofal.selection.aggregate.cells import answer_cells, canonical, check_min_region
from cofal.selection.aggregate.exchange import (
    Arrays,
    Consortium,
    Coordinator,
    Holder,
    Method,
    Question,
    coarse,
    fixed,
    fraction_bits,
    real,
)
from cofal.selection.aggregate.herding import NONE, Herd
from cofal.selection.maxherding import maxherding
from cofal.selection.pool import Budgets, Pool

ALL_CELLS = 1200  # of all clients together; bounds messages and time however many rows there are
SHARPER = 2.0  # candidates climb to modes of the density seen through a kernel this many times narrower
FIRST_PICKS = 5  # made before the gains are asked for again; the number of picks doubles from one question to the next
ALIKE = 0.999  # candidates of a higher cosine are one
_TILE = 512  # rows compared with all candidates at once


def coordinate(
    consortium: Consortium,
    rng: np.random.Generator,
    *,
    min_region: int = 5,
    lengthscale: float = 1.0,
    shifts: int = 3,
) -> Coordinator:
    """About `shifts` + log2(budget) + 2 round trips.

    Candidates are the directions of the clients' cells, and where those come after `shifts` steps of mean shift over
    all clients. Each client tells how near its nearest free samples are to them. The coordinator picks greedily by
    gains over the cells, which the clients correct by summed gains over their rows.
    """
    check_min_region(min_region)
    if isinstance(shifts, bool) or not isinstance(shifts, int) or shifts < 0:
        raise UserError(f"shifts = {shifts!r} is not a whole number of mean-shift steps; use 0 or more")
    if not (isinstance(lengthscale, int | float) and 0 < lengthscale < math.inf):
        raise UserError(f"lengthscale = {lengthscale!r} is not a number above 0")
    total = sum(consortium.budgets)
    if total == 0:
        return []
    most, seed = max(1, ALL_CELLS // consortium.clients), int(rng.integers(2**31))
    answers = yield Question("cells", numbers={"most": most, "min_region": min_region, "seed": seed})
    landmarks = np.concatenate([answer["means"] for answer in answers]).astype(np.float32)
    weights = np.maximum(1, np.concatenate([answer["counts"] for answer in answers]))  # noise may take them below
    numbers = {
        "bits": fraction_bits(sum(consortium.sizes)),
        "min_region": min_region,
        "sharpness": 2 / lengthscale**2,
    }
    picks: list[tuple[int, int]] = []  # (client, candidate)
    candidates = np.empty((0, consortium.dimensions), np.float16)
    if len(landmarks):
        shifted = yield from _shifted(_unit(landmarks), shifts, numbers)
        candidates = _distinct(np.concatenate([shifted, _unit(landmarks)]))
        depth = 2 + -(-total // len(candidates))
        answers = yield Question("offers", {"candidates": candidates}, {"depth": depth})
        offers = np.stack([answer["free"] for answer in answers])
        herd = Herd(candidates.astype(np.float32), landmarks, weights, offers, consortium.budgets, lengthscale)
        covering = [  # labelled samples
            (int(candidate), float(answer["taken"][candidate]))
            for answer in answers
            for candidate in np.flatnonzero(answer["taken"] > NONE)
        ]
        for candidate, cosine in covering:
            herd.cover(candidate, cosine)
        picks = yield from _picks(herd, candidates, covering, total, numbers)
    for client, budget in enumerate(consortium.budgets):  # what it told of is used up: it chooses the rest alone
        picks += [(client, -1)] * (budget - sum(who == client for who, _ in picks))
    own = [
        {"picks": np.array([candidate for client, candidate in picks if client == me and candidate >= 0], np.int16)}
        | {"alone": np.array([sum(client == me and candidate < 0 for client, candidate in picks)], np.int32)}
        for me in range(consortium.clients)
    ]
    yield Question("settle", {"candidates": candidates}, {"lengthscale": lengthscale, "seed": seed}, own=own)
    return [client for client, _ in picks]


def _shifted(candidates: np.ndarray, shifts: int, numbers: Mapping[str, float]) -> Generator[Question, Any, np.ndarray]:
    """Candidates (m, d) after steps of mean shift: each goes to the direction of the weighted sum of all rows."""
    for _ in range(shifts):
        sharper = {**numbers, "sharpness": numbers["sharpness"] * SHARPER**2}
        totals = yield Question("shift", {"candidates": candidates}, sharper, summed=True)
        sums = real(totals["sums"], int(numbers["bits"]))
        moved = np.abs(sums).max(1) > 0
        candidates = candidates.copy()
        candidates[moved] = _unit(sums[moved])
    return candidates


def _picks(
    herd: Herd,
    candidates: np.ndarray,
    covering: list[tuple[int, float]],
    total: int,
    numbers: Mapping[str, float],
) -> Generator[Question, Any, list[tuple[int, int]]]:
    """(client, candidate) of each pick; true gains are asked for at first, and again whenever the picks doubled."""
    picks: list[tuple[int, int]] = []
    while herd.left.sum() > 0:
        arrays = {
            "candidates": candidates,
            "offered": herd.offered,
            "centers": np.array([candidate for candidate, _ in covering], np.int16),
            "cosines": np.array([cosine for _, cosine in covering], np.float32),
        }
        totals = yield Question("gains", arrays, numbers, summed=True)
        herd.correct(real(totals["gains"], int(numbers["bits"])))
        for _ in range(max(FIRST_PICKS, len(picks))):
            if herd.left.sum() == 0:
                break
            found = herd.pick()
            if found is None:
                return picks
            client, candidate, cosine = found
            picks.append((client, candidate))
            covering.append((candidate, cosine))
    return picks


def answer(holder: Holder, kind: str, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]) -> Arrays:
    """A client's part: means of its cells, weighted sums, cosines of its nearest samples, gains, and its picks."""
    if kind == "cells":
        return answer_cells(holder, numbers)
    candidates = arrays["candidates"].astype(np.float32)
    if kind == "shift":
        return _answer_shift(holder, candidates, numbers)
    if kind == "offers":
        return _answer_offers(holder, candidates, int(numbers["depth"]))
    if kind == "gains":
        return _answer_gains(holder, candidates, arrays, numbers)
    _settle(holder, candidates[arrays["picks"]], int(arrays["alone"][0]), numbers)
    return {}


def _answer_shift(holder: Holder, candidates: np.ndarray, numbers: Mapping[str, float]) -> Arrays:
    """Kernel-weighted sums of the client's rows around each candidate.

    Nothing is said where the weights are worth fewer than `min_region` rows: (sum w)^2 / (sum w^2).
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
    few = weight**2 < numbers["min_region"] * squared * (1 - 1e-6)
    sums[few] = 0
    return {"sums": fixed(sums, int(numbers["bits"]))}


def _answer_offers(holder: Holder, candidates: np.ndarray, depth: int) -> Arrays:
    """free (m, depth): the cosines of the client's free rows nearest to each candidate, falling, NONE where there is no
    further one. taken (m,): the largest cosine of its taken rows that have this candidate as their nearest.
    """
    rows, taken, _ = canonical(holder)
    free = np.full((len(candidates), depth), NONE, np.float32)
    cosines = candidates @ rows[~taken].T
    told = min(depth, cosines.shape[1])
    if told:
        free[:, :told] = -np.sort(np.partition(-cosines, told - 1, axis=1)[:, :told], axis=1)
    covered = np.full(len(candidates), NONE, np.float32)
    cosines = candidates @ rows[taken].T
    np.maximum.at(covered, cosines.argmax(0), cosines.max(0, initial=NONE))
    return {"free": coarse(np.maximum(free, NONE)), "taken": coarse(covered)}


def _answer_gains(
    holder: Holder, candidates: np.ndarray, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, float]
) -> Arrays:
    """What each candidate's offer would add to the coverage of the client's rows, given what covers them already.

    Nothing is said of a gain to which fewer than `min_region` rows contribute.
    """
    rows, _, _ = canonical(holder)
    sharpness = np.float32(numbers["sharpness"])
    gains, gaining = np.zeros(len(candidates)), np.zeros(len(candidates), np.int64)
    for start in range(0, len(rows), _TILE):
        cosines = rows[start : start + _TILE] @ candidates.T
        near = cosines[:, arrays["centers"]] * arrays["cosines"]
        best = np.exp(sharpness * (near.max(1, initial=-np.inf) - 1))  # 0 when nothing covers
        cosines *= arrays["offered"]
        cosines -= 1
        cosines *= sharpness
        np.exp(cosines, out=cosines)
        cosines -= best[:, None]
        np.maximum(cosines, 0, out=cosines)
        gains += cosines.sum(0, dtype=np.float64)
        gaining += np.count_nonzero(cosines, axis=0)
    gains[gaining < numbers["min_region"]] = 0
    return {"gains": fixed(gains, int(numbers["bits"]))}


def _settle(holder: Holder, centers: np.ndarray, alone: int, numbers: Mapping[str, float]) -> None:
    """The free row nearest to each of `centers` in turn, none twice; then `alone` more by MaxHerding on its rows."""
    rows, taken, positions = canonical(holder)
    gone = taken.copy()
    picked = []
    for center in centers:
        row = int(np.where(gone, -np.inf, rows @ center).argmax())
        gone[row] = True
        picked.append(row)
    if alone:
        pool = Pool([rows], [np.flatnonzero(gone)])
        rng = generator(int(numbers["seed"]), "alone")
        rest = maxherding(pool, Budgets([alone], pool), rng, lengthscale=numbers["lengthscale"])
        picked += rest.rows.tolist()
    holder.picked = positions[np.array(picked, np.int64)]


def _unit(x: np.ndarray) -> np.ndarray:
    """Directions of the rows of `x` (m, d), float16: both halves compute with the very same numbers."""
    directions: np.ndarray = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return directions.astype(np.float16)


def _distinct(candidates: np.ndarray) -> np.ndarray:
    """The candidates (m, d) without those that point where an earlier one does."""
    cosines = candidates.astype(np.float32) @ candidates.T.astype(np.float32)
    kept: list[int] = []
    for row in range(len(candidates)):
        if not kept or cosines[row, kept].max() <= ALIKE:
            kept.append(row)
    return candidates[kept]


MAXHERDING = Method(coordinate, answer, {"counts": True})
