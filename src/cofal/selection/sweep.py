"""One pass over all pairs of rows: kernel tiles of the upper triangle become gains and a list of pairs that matter.

Each tile serves both its rows and its columns, so a pass costs half a matrix product over all pairs.
"""

from __future__ import annotations

import numba
import numpy as np

from cofal.selection.kernels import Kernel
from cofal.selection.pairs import PairList
from cofal.selection.pool import Pool
from cofal.selection.steps import steps

_CHUNK = 64  # rows summed in float32 before they are added up in float64; fixed, so sums do not depend on the threads


def tile_size(n: int) -> int:
    """Rows of a tile: small enough for the cache, and few enough tiles that the pair list's table stays small."""
    return 1024 if n <= 65_536 else 2048


def sweep(pool: Pool, kernel: Kernel, stages: np.ndarray, pairs: PairList | None) -> np.ndarray:
    """Gains of every row at several stages of a selection.

    `stages` (s, n) float32 holds best(x), the kernel value of the best pick of each row, at each stage. Returns (s, n)
    float64: gains[s, c] = sum over x of max(0, k(x, c) - stages[s, x]). `pairs`, if given, collects the pairs with
    k(x, c) > stages[-1, x].
    """
    gains = np.zeros(stages.shape)
    size = tile_size(pool.n)
    tiles = [(start, min(start + size, pool.n)) for start in range(0, pool.n, size)]
    with steps("distances", len(tiles) * (len(tiles) + 1) // 2) as advance:
        for i, (top, bottom) in enumerate(tiles):
            a = pool.tile(top, bottom)
            for left, right in tiles[i:]:
                values = kernel.tile(a, a if left == top else pool.tile(left, right))
                row_best, column_best = stages[:, top:bottom].copy(), stages[:, left:right].copy()  # contiguous
                _add_gains(values, row_best, column_best, gains[:, top:bottom], gains[:, left:right], left != top)
                if pairs is not None:
                    pairs.collect(values, stages[-1], top, left)
                advance(1)
    return gains


@numba.njit(parallel=True, fastmath=True, cache=True)
def _add_gains(
    values: np.ndarray,
    row_best: np.ndarray,
    column_best: np.ndarray,
    row_gains: np.ndarray,
    column_gains: np.ndarray,
    both: bool,
) -> None:
    """Add a (r, c) tile to the gains of its rows (over its columns) and, if `both`, of its columns (over its rows).

    The inner loops run over one-dimensional contiguous views, which is what lets the compiler vectorise them.
    """
    r, c = values.shape
    count = row_best.shape[0]
    chunks = (r + _CHUNK - 1) // _CHUNK
    partial = np.zeros((chunks, count, c), dtype=np.float32)
    for chunk in numba.prange(chunks):
        for s in range(count):
            column_sums, theirs = partial[chunk, s], column_best[s]
            for i in range(chunk * _CHUNK, min(r, (chunk + 1) * _CHUNK)):
                row, mine = values[i], row_best[s, i]
                total = np.float32(0)
                for j in range(c):
                    rise, own_rise = row[j] - theirs[j], row[j] - mine
                    total += rise if rise > 0 else np.float32(0)
                    column_sums[j] += own_rise if own_rise > 0 else np.float32(0)
                row_gains[s, i] += total
    if both:
        for s in numba.prange(count):
            for chunk in range(chunks):
                for j in range(c):
                    column_gains[s, j] += partial[chunk, s, j]
