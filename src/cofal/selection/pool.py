"""What a selection works on and what it gives back: the clients' embeddings, their budgets, and the picks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from cofal.errors import UserError
from cofal.selection.numbers import is_whole

if TYPE_CHECKING:
    from cofal.selection.auto import Decision

KEPT_BYTES = 128 << 20  # a pool whose float32 rows take more is read tile by tile unless the caller grants more
_CHUNK = 8192  # rows validated at a time, so that a memory-mapped file is never held whole


class Pool:
    """The clients' embeddings as one virtual (n, d) matrix of unit rows, with the owner of each row and its label mark.

    The arrays are kept as given (float16, float32, float64, integers, memory maps) and normalised tile by tile: a row
    is divided by its float64 norm and rounded once to float32. That float32 row is *the* embedding: every distance in
    `cofal.selection` is between such rows, so a pick does not depend on how the rows were cut into tiles.
    """

    def __init__(
        self,
        embeddings: Sequence[np.ndarray],
        labeled: Sequence[np.ndarray] | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        if len(embeddings) == 0:
            raise UserError("no embeddings were given; give one (rows, dimensions) array per client")
        self._arrays = [_checked_array(client, array) for client, array in enumerate(embeddings)]
        self.d = int(self._arrays[0].shape[1])
        for client, array in enumerate(self._arrays):
            if array.shape[1] != self.d:
                raise UserError(
                    f"client {client} has embeddings of {array.shape[1]} dimensions but client 0 has {self.d}; "
                    "embed all clients with the same encoder"
                )
        sizes = [len(array) for array in self._arrays]
        self.clients = len(sizes)
        self.n = sum(sizes)
        self.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.owner = np.repeat(np.arange(self.clients, dtype=np.int32), sizes)
        self.labeled = _labeled_mask(labeled, self.offsets)
        self.device = _checked_device(device)
        self._norms = np.concatenate([_row_norms(client, array) for client, array in enumerate(self._arrays)])
        self._unit: np.ndarray | None = None  # (n, d) float32 unit rows, in pools made by `subset`

    def tile(self, start: int, stop: int) -> torch.Tensor:
        """Rows start..stop as a (stop - start, d) float32 tensor of unit rows on the pool's device."""
        if self._unit is not None:
            return torch.from_numpy(self._unit[start:stop]).to(self.device)
        out = np.empty((stop - start, self.d), dtype=np.float32)
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        for client in range(first, self.clients):
            low, high = int(self.offsets[client]), int(self.offsets[client + 1])
            if low >= stop:
                break
            a, b = max(start, low), min(stop, high)
            if a < b:
                part = np.asarray(self._arrays[client][a - low : b - low], dtype=np.float64)
                out[a - start : b - start] = part / self._norms[a:b, None]
        return torch.from_numpy(out).to(self.device)

    def rows(self, index: np.ndarray, out: torch.Tensor | None = None) -> torch.Tensor:
        """The rows of `index` (any order) as a (len(index), d) float32 tensor of unit rows on the pool's device.

        Its memory is the head of `out` (at least len(index), d) where that saves taking new memory.
        """
        index = np.asarray(index, dtype=np.int64)
        if self._unit is not None:
            if out is not None and self.device.type == "cpu":
                return torch.index_select(
                    torch.from_numpy(self._unit), 0, torch.from_numpy(index), out=out[: len(index)]
                )
            return torch.from_numpy(self._unit[index]).to(self.device)
        found = np.empty((len(index), self.d), dtype=np.float32)
        for client in np.unique(self.owner[index]):
            mine = np.flatnonzero(self.owner[index] == client)
            part = np.asarray(self._arrays[client][index[mine] - self.offsets[client]], dtype=np.float64)
            found[mine] = part / self._norms[index[mine], None]
        return torch.from_numpy(found).to(self.device)

    def locate(self, row: int) -> tuple[int, int]:
        """The (client, position in that client's array) of a global row."""
        client = int(self.owner[row])
        return client, int(row - self.offsets[client])

    def client(self, client: int) -> Pool:
        """The pool of one client alone (its rows and labels, nothing copied)."""
        low, high = int(self.offsets[client]), int(self.offsets[client + 1])
        alone = object.__new__(Pool)  # the rows are validated already
        alone.n, alone.d, alone.clients, alone.device = high - low, self.d, 1, self.device
        alone.offsets = np.array([0, high - low], dtype=np.int64)
        alone.owner = np.zeros(alone.n, dtype=np.int32)
        alone.labeled = self.labeled[low:high]
        alone._arrays, alone._norms = [self._arrays[client]], self._norms[low:high]
        alone._unit = None if self._unit is None else self._unit[low:high]
        return alone

    def subset(self, index: np.ndarray) -> Pool:
        """The pool of the rows `index` (ascending) under the same clients; its rows are held in memory as float32."""
        index = np.asarray(index, dtype=np.int64)
        sizes = np.bincount(self.owner[index], minlength=self.clients)
        part = object.__new__(Pool)
        part.n, part.d, part.clients, part.device = len(index), self.d, self.clients, self.device
        part.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        part.owner, part.labeled = self.owner[index], self.labeled[index]
        part._unit = np.empty((part.n, self.d), dtype=np.float32)
        for start in range(0, part.n, _CHUNK):
            part._unit[start : start + _CHUNK] = self.rows(index[start : start + _CHUNK]).cpu().numpy()
        part._arrays = [part._unit[a:b] for a, b in zip(part.offsets[:-1], part.offsets[1:])]
        part._norms = np.ones(part.n)  # the rows are this pool's unit rows, bit for bit
        return part

    def labeled_as(self, other: Pool) -> Pool:
        """This pool with the label marks of `other`, whose rows are the same samples; nothing is copied."""
        marked = copy.copy(self)
        marked.labeled = other.labeled
        return marked

    def in_memory(self, limit: int | None = None) -> Pool:
        """This pool with its unit rows held as float32 when they need at most `limit` bytes (None: `KEPT_BYTES`).

        Else the pool as it is. For work that reads the rows many times; the values are the same, bit for bit.
        """
        limit = KEPT_BYTES if limit is None else limit
        if self._unit is not None or 4 * self.n * self.d > limit:
            return self
        return self.subset(np.arange(self.n))


class Budgets:
    """How many labels each client can afford: a partition matroid over the rows of a pool."""

    def __init__(self, per_client: Sequence[int], pool: Pool) -> None:
        """Budgets are whole numbers, one per client, none above the client's unlabelled rows."""
        if len(per_client) != pool.clients:
            raise UserError(
                f"{len(per_client)} budgets were given for {pool.clients} clients; give one budget per client"
            )
        free = np.bincount(pool.owner[~pool.labeled], minlength=pool.clients)
        checked = []
        for client, budget in enumerate(per_client):
            if not is_whole(budget):
                raise UserError(f"the budget of client {client} is {budget!r}; a budget is a whole number")
            if budget < 0:
                raise UserError(f"the budget of client {client} is {budget}; a budget is 0 or more")
            if budget > free[client]:
                raise UserError(
                    f"the budget of client {client} is {budget} but it has {free[client]} unlabelled rows; lower it"
                )
            checked.append(int(budget))
        self.per_client = np.array(checked, dtype=np.int64)
        self.total = int(self.per_client.sum())


@dataclass(frozen=True)
class Picked:
    """What a selector returns that knows more than its rows: the gain of each pick, and what an approximation lost."""

    rows: np.ndarray  # (total budget,) int64 global rows in picked order
    gains: np.ndarray | None = None  # (total budget,) float64 growth of the objective at each pick
    coverage_loss: float | None = None  # if approximate: 1 - coverage / coverage of exact picks, on a sample


@dataclass(frozen=True)
class Selection:
    """The picks of `cofal.select`."""

    indices: list[np.ndarray]  # one int64 array per client: positions in that client's array, in the order picked
    order: list[tuple[int, int]]  # (client, position) in the order picked
    rounds: int = 0  # what an aggregate selection exchanged; 0 for the others
    bytes_up: int = 0
    gains: np.ndarray | None = field(default=None, repr=False)  # growth of the objective at each pick of `order`
    coverage_loss: float | None = None  # measured loss of an approximate selection; None for an exact one
    decision: Decision | None = field(default=None, repr=False)  # what `auto` measured and decided; None for the others


def _checked_array(client: int, array: np.ndarray) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        array = np.asarray(array)
    if array.dtype.kind not in "fiu":
        raise UserError(f"client {client} has embeddings of type {array.dtype}; give real numbers such as float32")
    if array.ndim != 2 or array.shape[1] == 0:
        raise UserError(f"client {client} has embeddings of shape {array.shape}; give a (rows, dimensions) array")
    return array


def _checked_device(device: str) -> torch.device:
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {device!r} cannot be used here; use 'cpu'") from error
    return checked


def _row_norms(client: int, array: np.ndarray) -> np.ndarray:
    """Euclidean norms of the rows, float64; a row that cannot be normalised is the user's mistake."""
    norms = np.empty(len(array))
    for start in range(0, len(array), _CHUNK):
        part = np.asarray(array[start : start + _CHUNK], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            norms[start : start + _CHUNK] = np.sqrt((part * part).sum(axis=1))
    beyond = np.flatnonzero(~np.isfinite(norms))
    bad = beyond[~np.isfinite(array[beyond]).all(axis=1)]
    if len(bad):
        raise UserError(
            f"row {bad[0]} of client {client} holds NaN or infinity ({len(bad)} such rows); remove or repair it"
        )
    tiny = np.flatnonzero(norms < 1e-150)
    zero = tiny[~array[tiny].any(axis=1)]
    if len(zero):
        raise UserError(
            f"row {zero[0]} of client {client} is all zeros ({len(zero)} such rows); it has no direction, remove it"
        )
    for rows, size in ((beyond, "large"), (tiny, "small")):
        if len(rows):
            largest = np.abs(array[rows[0]]).max()
            raise UserError(
                f"row {rows[0]} of client {client} has values up to {largest:.3g}, too {size} to be squared "
                f"({len(rows)} such rows); scale it to a length near 1"
            )
    return norms


def _labeled_mask(labeled: Sequence[np.ndarray] | None, offsets: np.ndarray) -> np.ndarray:
    mask = np.zeros(int(offsets[-1]), dtype=bool)
    if labeled is None:
        return mask
    clients = len(offsets) - 1
    if len(labeled) != clients:
        raise UserError(
            f"labelled positions were given for {len(labeled)} clients of {clients}; give one list per client"
        )
    for client, given in enumerate(labeled):
        positions = np.asarray(given)
        if positions.size == 0:
            continue
        if positions.ndim != 1 or not _whole(positions):
            raise UserError(
                f"the labelled positions of client {client} must be a list of whole numbers, not {positions.dtype}"
            )
        size = int(offsets[client + 1] - offsets[client])
        wrong = positions[(positions < 0) | (positions >= size)]
        if len(wrong):
            raise UserError(f"labelled position {wrong[0]} of client {client} is outside its rows 0 to {size - 1}")
        values, counts = np.unique(positions, return_counts=True)
        if counts.max() > 1:
            raise UserError(f"labelled position {values[counts > 1][0]} of client {client} is given twice")
        mask[offsets[client] + positions.astype(np.int64)] = True
    return mask


def _whole(numbers: np.ndarray) -> bool:
    """Whether all are whole numbers; numpy holds those too large for its own types as Python's."""
    if numbers.dtype.kind == "O":
        return all(map(is_whole, numbers))
    return numbers.dtype.kind in "iu"
