"""Kernel values between a few candidates and all rows, kept while the candidates are likely to be asked about again."""

from __future__ import annotations

import numba
import numpy as np

from cofal.selection.kernels import Kernel
from cofal.selection.pool import Pool

_TILE = 8192


class RowValues:
    """float32 values of the loaded candidates to all rows, from which float64 values are made where they matter."""

    def __init__(self, pool: Pool, kernel: Kernel) -> None:
        self._pool, self._kernel = pool, kernel
        self._places: dict[int, int] = {}
        self._values = np.empty((0, pool.n), dtype=np.float32)
        self._units = np.empty((0, pool.d), dtype=np.float32)

    def has(self, row: int) -> bool:
        return row in self._places

    def load(self, rows: np.ndarray) -> None:
        """Make the values of `rows`, in one go, unless they are all there."""
        if all(int(row) in self._places for row in rows):
            return
        units = self._pool.rows(rows)
        if len(self._values) < len(rows):
            self._values = np.empty((len(rows), self._pool.n), dtype=np.float32)
        for start in range(0, self._pool.n, _TILE):
            stop = min(start + _TILE, self._pool.n)
            self._values[: len(rows), start:stop] = self._kernel.tile(units, self._pool.tile(start, stop))
        self._units = units.cpu().numpy()
        self._places = {int(row): place for place, row in enumerate(rows)}

    def above(self, best: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
        """The points x (ascending) with k(x, row) > best[x], and those values in float64."""
        if row not in self._places:
            self.load(np.array([row]))
        place = self._places[row]
        points = _close(self._values[place], best, 2 * self._kernel.noise)
        units = self._pool.rows(points).cpu().numpy()
        here = np.full(len(points), place)
        values = self._kernel.pairs(units, self._units, np.arange(len(points)), here)
        rising = values > best[points]
        return points[rising], values[rising]


@numba.njit(cache=True)
def _close(values: np.ndarray, best: np.ndarray, margin: float) -> np.ndarray:
    """Where values > best - margin."""
    found = np.empty(values.shape[0], dtype=np.int64)
    count = 0
    for x in range(values.shape[0]):
        if values[x] > best[x] - margin:
            found[count] = x
            count += 1
    return found[:count].copy()
