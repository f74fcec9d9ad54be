"""FederatedMaxHerding: kernel coverage from means of cells, kernel-weighted sums and summed gains.

This is the coordinator's half. The clients' half is in grazing.py, the coordinator's own greedy in herding.py.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from cofal.errors import UserError
from cofal.selection.aggregate.bounds import UNIT, Asked, between, positions, vectors, whole
from cofal.selection.aggregate.cells import CELLS, check_min_region
from cofal.selection.aggregate.exchange import (
    Arrays,
    Consortium,
    Coordinator,
    Method,
    Question,
    by_turns,
    fraction_bits,
    real,
    to_depth,
)
from cofal.selection.aggregate.grazing import answer
from cofal.selection.aggregate.herding import NONE, Herd
from cofal.selection.aggregate.overlaps import batch_ends
from cofal.selection.numbers import check_whole, checked_lengthscale

ALL_CELLS = 1200  # of all clients together; bounds messages and time however many rows there are
SHARPER = 2.0  # candidates climb to modes of the density seen through a kernel this many times narrower
TOGETHER = 2  # cells for each pick that is chosen together; beyond that cells are too coarse and clients go on alone
TRIPS, PICKS_A_TRIP = 10, 20  # a selection takes at most TRIPS + budget / PICKS_A_TRIP round trips
BESIDE = 3  # round trips that are neither shifts nor gains: cells, offers and the last question
BATCHES = 20  # at most: gains are asked for before each
ALIKE = 0.999  # candidates of a higher cosine are one


def coordinate(
    consortium: Consortium,
    rng: np.random.Generator,
    *,
    min_region: int = 5,
    lengthscale: float = 1.0,
    shifts: int = 3,
) -> Coordinator:
    """10 + budget / 20 round trips at most; more `shifts` than fit in are refused.

    Candidates are the directions of the clients' cells, and where those come after `shifts` steps of mean shift over
    all clients. Each client tells how near its nearest free samples are to them. The coordinator picks greedily by
    gains over the cells, which the clients correct by summed gains over their rows. Once half as many samples are
    labelled as there are cells, clients choose the rest alone, knowing what covers already.
    """
    check_min_region(min_region)
    check_whole("shifts", shifts, "mean-shift steps", 0)
    lengthscale = checked_lengthscale(lengthscale)
    total = sum(consortium.budgets)
    if total == 0:
        return []
    trips = TRIPS + total // PICKS_A_TRIP - shifts - BESIDE
    if trips < 1:
        raise UserError(
            f"shifts = {shifts} leaves no round trip for gains: a selection of {total} takes {TRIPS} + budget / "
            f"{PICKS_A_TRIP} at most; use {shifts + trips - 1} or fewer"
        )
    most, seed = max(1, ALL_CELLS // consortium.clients), int(rng.integers(2**31))
    answers = yield Question("cells", numbers={"most": most, "min_region": min_region, "fine": 0})
    landmarks = np.concatenate([answer["means"] for answer in answers]).astype(np.float32)
    weights = np.maximum(1, np.concatenate([answer["counts"] for answer in answers]))  # noise may take them below
    numbers = {
        "bits": fraction_bits(sum(consortium.sizes)),
        "min_region": min_region,
        "sharpness": 2 / lengthscale**2,
    }
    picks: list[tuple[int, int]] = []  # (client, candidate)
    covering: list[tuple[int, float]] = []  # labelled samples and picks: the candidate nearest to each, and its cosine
    candidates = np.empty((0, consortium.dimensions), np.float16)
    if len(landmarks):
        shifted = yield from _shifted(_unit(landmarks), shifts, numbers)
        candidates = _distinct(np.concatenate([shifted, _unit(landmarks)]))
        depth = 2 + -(-total // len(candidates))
        answers = yield Question("offers", {"candidates": candidates}, {"depth": depth, "min_region": min_region})
        offers = to_depth([answer["free"] for answer in answers], depth, NONE)
        herd = Herd(candidates.astype(np.float32), landmarks, weights, offers, consortium.budgets, lengthscale)
        covering = [
            (int(candidate), float(answer["taken"][candidate]))
            for answer in answers
            for candidate in np.flatnonzero(answer["taken"] > NONE)
        ]
        for candidate, cosine in covering:
            herd.cover(candidate, cosine)
        together = min(total, len(landmarks) // TOGETHER - sum(consortium.labeled))
        picks = yield from _picks(herd, candidates, covering, together, trips, numbers)
    picks += _alone(picks, consortium.budgets)
    own = [
        {"picks": np.array([candidate for client, candidate in picks if client == me and candidate >= 0], np.int16)}
        | {"alone": np.array([sum(client == me and candidate < 0 for client, candidate in picks)], np.int32)}
        for me in range(consortium.clients)
    ]
    told = {"candidates": candidates, **_told(covering)}
    yield Question("settle", told, {"lengthscale": lengthscale, "seed": seed}, own=own)
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
    together: int,
    trips: int,
    numbers: Mapping[str, float],
) -> Generator[Question, Any, list[tuple[int, int]]]:
    """(client, candidate) of up to `together` picks; before each of up to `trips` batches true gains are asked for."""
    picks: list[tuple[int, int]] = []
    for end in batch_ends(together, min(trips, together, BATCHES)) if together > 0 else []:
        arrays = {"candidates": candidates, "offered": herd.offered, **_told(covering)}
        totals = yield Question("gains", arrays, numbers, summed=True)
        herd.correct(real(totals["gains"], int(numbers["bits"])))
        while len(picks) < end:
            found = herd.pick()
            if found is None:
                return picks
            client, candidate, cosine = found
            picks.append((client, candidate))
            covering.append((candidate, cosine))
    return picks


def _told(covering: list[tuple[int, float]]) -> Arrays:
    """What covers already, as clients are told it."""
    return {
        "centers": np.array([candidate for candidate, _ in covering], np.int16),
        "cosines": np.array([cosine for _, cosine in covering], np.float32),
    }


def _alone(picks: list[tuple[int, int]], budgets: Sequence[int]) -> list[tuple[int, int]]:
    """The picks that are left to the clients, by turns."""
    left = np.array(budgets) - np.bincount([client for client, _ in picks], minlength=len(budgets))
    return [(client, -1) for client in by_turns(left)]


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


_CANDIDATES = {"candidates": vectors("candidates", longest=UNIT)}
_COVERING = {"centers": positions("covering", "candidates"), "cosines": between("covering", -UNIT, UNIT)}
MAXHERDING = Method(
    coordinate,
    answer,
    counts={"counts": True},
    asked={
        "cells": CELLS,
        "shift": Asked(_CANDIDATES, ("bits", "sharpness"), summed=True),
        "offers": Asked(_CANDIDATES, ("depth",)),
        "gains": Asked(
            _CANDIDATES | _COVERING | {"offered": between("candidates", NONE, UNIT)}, ("bits", "sharpness"), summed=True
        ),
        "settle": Asked(
            _CANDIDATES | _COVERING | {"picks": positions("picks", "candidates"), "alone": whole(1)},
            ("lengthscale", "seed"),
            silent=True,
        ),
    },
    most={"candidates": 4096},
)
