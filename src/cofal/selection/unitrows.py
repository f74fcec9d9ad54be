"""A pool's unit rows for work that reads them many times: kept in memory when few, read from the pool when many."""

from __future__ import annotations

import numpy as np
import torch

from cofal.selection.pool import Pool

KEPT_BYTES = 128 * 2**20  # a pool whose float32 rows take more is read tile by tile each time


class UnitRows:
    """The rows of a pool as float32 tensors on its device; same values as the pool's, bit for bit."""

    def __init__(self, pool: Pool) -> None:
        self.n, self.d, self.device = pool.n, pool.d, pool.device
        self._pool = pool
        self._kept = pool.tile(0, pool.n) if pool.n * pool.d * 4 <= KEPT_BYTES else None

    def tile(self, start: int, stop: int) -> torch.Tensor:
        """Rows start..stop, (stop - start, d); not to be written to."""
        return self._pool.tile(start, stop) if self._kept is None else self._kept[start:stop]

    def rows(self, index: np.ndarray) -> torch.Tensor:
        """The rows of `index` in that order, (len(index), d)."""
        if self._kept is None:
            return self._pool.rows(index)
        return self._kept[torch.from_numpy(index).to(self.device)]

    def subset(self, index: np.ndarray) -> UnitRows:
        """The rows of `index` (ascending) alone."""
        return UnitRows(self._pool.subset(index))
