"""Kernels k(x, x') of the squared distance between unit rows: whole tiles in float32, single pairs in float64.

The float64 value of a pair, from the differences of its two float32 rows, is what the selectors mean by k. Tiles come
from a matrix product and are close to it (`noise` says how close); a top-hat tile equals it, since pairs near the edge
are decided pair by pair.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable

import numba
import numpy as np
import torch

from cofal.errors import UserError

NAMES = ("gaussian", "laplace", "cauchy", "tophat")
_NEAR = 1e-2  # squared distance below which kernels with a steep top get their tiles corrected pair by pair
_FLOAT32 = 2.0**-24  # rounding unit


class Kernel:
    """A function of the squared distance (tensor in, tensor out, float32 or float64) and how to make tiles of it."""

    exact = False  # whether tiles equal the float64 values

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], d: int, *, steep: bool) -> None:
        """`function` may overwrite its input; `d` is the dimension of the rows; `steep` kernels fall fast near zero."""
        self._function, self._steep, self._buffer = function, steep, TileBuffer()
        error = 4 * math.sqrt(d) * _FLOAT32  # of a squared distance in a tile: four times what is met in practice
        grid = torch.linspace(_NEAR if steep else 0.0, 4.0, 4001, dtype=torch.float64)
        change = (self.of(grid.clone()) - self.of(grid + error)).abs().max()
        self.noise = float(change) + 4 * _FLOAT32  # bound on the error of a value in a tile

    def of(self, squared: torch.Tensor) -> torch.Tensor:
        """k at these squared distances."""
        return self._function(squared)

    def tile(self, a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
        """k between all unit rows of a (r, d) and b (c, d): (r, c) float32 on the host, valid until the next tile."""
        squared = self._buffer.squared(a, b)
        if self._steep:
            on_host = squared.cpu().numpy()
            _redo_near(on_host, _host(a), _host(b), _NEAR)
            squared = torch.from_numpy(on_host).to(a.device)
        return _host(self.of(squared))

    def pairs(self, a: np.ndarray, b: np.ndarray, rows_a: np.ndarray, rows_b: np.ndarray) -> np.ndarray:
        """k between a[rows_a[p]] and b[rows_b[p]] for every p, in float64."""
        distances = squared_distances if len(rows_a) > 2048 else squared_distances_serial
        return self.of(torch.from_numpy(distances(a, b, rows_a, rows_b))).numpy()


class TopHat(Kernel):
    """1 inside the ball of radius `delta` (its edge included), 0 outside: kernel coverage becomes ball coverage."""

    exact = True

    def __init__(self, delta: float, d: int) -> None:
        self._limit, self._buffer = delta * delta, TileBuffer()
        self._band = edge_band(d)
        self.noise = 0.0

    def of(self, squared: torch.Tensor) -> torch.Tensor:
        return (squared <= self._limit).to(squared.dtype)

    def tile(self, a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
        tile = _host(self._buffer.squared(a, b))
        _inside(tile, _host(a), _host(b), self._limit, self._band)
        return tile


def make_kernel(kernel: str | Callable[[torch.Tensor], torch.Tensor], d: int, lengthscale: float) -> Kernel:
    """The kernel called `kernel` over rows of `d` dimensions, or the user's own function of the squared distance."""
    sigma = lengthscale
    if callable(kernel):
        return Kernel(_checked(kernel), d, steep=True)
    if kernel == "gaussian":
        return Kernel(lambda squared: squared.mul_(-1 / sigma**2).exp_(), d, steep=False)
    if kernel == "laplace":
        return Kernel(lambda squared: squared.sqrt_().mul_(-1 / sigma).exp_(), d, steep=True)
    if kernel == "cauchy":
        return Kernel(lambda squared: squared.mul_(1 / sigma**2).add_(1).reciprocal_(), d, steep=False)
    if kernel == "tophat":
        return TopHat(sigma, d)
    near = difflib.get_close_matches(str(kernel), NAMES, n=1, cutoff=0.0)[0]
    raise UserError(f"unknown kernel {kernel!r}; did you mean {near!r}? (known: {', '.join(NAMES)}, or a callable)")


def _checked(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    probe = torch.linspace(0, 4, 9, dtype=torch.float64)
    value = function(probe)
    if not isinstance(value, torch.Tensor) or value.shape != probe.shape or not bool(torch.isfinite(value).all()):
        raise UserError(
            "the kernel must turn a tensor of squared distances (0 to 4) into finite values of the same shape"
        )
    return function


class TileBuffer:
    """Room for one tile, used again and again: fresh memory for each tile would cost as much as its arithmetic."""

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def squared(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """2 - 2 <a_i, b_j>, the squared distances of unit rows."""
        r, c = len(a), len(b)
        if self._room.numel() < r * c or self._room.device != a.device:
            self._room = torch.empty(r * c, device=a.device)
        if r < c:
            a = a * -2.0
        else:  # the same to the last bit: scaling by a power of two rounds nothing
            b = b * -2.0
        return torch.mm(a, b.T, out=self._room[: r * c].view(r, c)).add_(2.0)


def edge_band(d: int) -> float:
    """Any order of summation of d float32 products of unit rows stays within this of the float64 squared distance."""
    return 2 * (d + 16) * _FLOAT32


def _host(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


@numba.njit(inline="always", fastmath={"reassoc", "contract"})
def squared_distance(x: np.ndarray, y: np.ndarray) -> float:
    total = 0.0
    for k in range(x.shape[0]):
        difference = np.float64(x[k]) - np.float64(y[k])
        total += difference * difference
    return total


def _squared_distances(a: np.ndarray, b: np.ndarray, rows_a: np.ndarray, rows_b: np.ndarray) -> np.ndarray:
    """float64 squared distances between the float32 rows a[rows_a[p]] and b[rows_b[p]]."""
    out = np.empty(rows_a.shape[0])
    for p in numba.prange(rows_a.shape[0]):
        out[p] = squared_distance(a[rows_a[p]], b[rows_b[p]])
    return out


squared_distances = numba.njit(parallel=True, cache=True)(_squared_distances)
squared_distances_serial = numba.njit(cache=True)(_squared_distances)  # waking threads costs more than a few pairs


@numba.njit(parallel=True, cache=True)
def _redo_near(tile: np.ndarray, a: np.ndarray, b: np.ndarray, near: float) -> None:
    """Replace the small squared distances of `tile`, which a matrix product gets wrong, by their float64 values."""
    for i in numba.prange(tile.shape[0]):
        for j in range(tile.shape[1]):
            if tile[i, j] < near:
                tile[i, j] = squared_distance(a[i], b[j])


@numba.njit(parallel=True, cache=True)
def _inside(tile: np.ndarray, a: np.ndarray, b: np.ndarray, limit: float, band: float) -> None:
    """Turn squared distances into 1 (within the limit) and 0; those within `band` of it are decided in float64."""
    low, high = np.float32(limit - band), np.float32(limit + band)
    for i in numba.prange(tile.shape[0]):
        row = tile[i]
        close = np.int32(0)
        for j in range(row.shape[0]):
            close += np.int32(row[j] >= low) & np.int32(row[j] <= high)
        if close > 0:
            for j in range(row.shape[0]):
                if row[j] >= low and row[j] <= high:
                    row[j] = -8 if squared_distance(a[i], b[j]) <= limit else 8  # far from the edge, either side
        for j in range(row.shape[0]):
            row[j] = np.float32(1) if row[j] < low else np.float32(0)
