"""What is kept for the next selection over the same rows."""

import numpy as np

from cofal.selection.pool import Pool
from cofal.selection.remember import once_per_rows


def test_rows_and_their_holders_are_measured_once_whatever_is_labelled():
    measured = []

    @once_per_rows
    def rows_held(pool):
        measured.append(pool.n)
        return np.diff(pool.offsets).tolist()

    x = np.random.default_rng(0).normal(size=(9, 4))
    assert rows_held(Pool([x[:5], x[5:]])) == [5, 4]
    assert rows_held(Pool([2 * x[:5], x[5:]], [[1], []])) == [5, 4], "the same directions"
    assert len(measured) == 1
    assert rows_held(Pool([x[:4], x[4:]])) == [4, 5], "other holders"
    assert rows_held(Pool([x[:4], -x[4:]])) == [4, 5], "other rows"
    assert len(measured) == 3
    assert rows_held(Pool([x[:5], x[5:]])) == [5, 4]
    assert len(measured) == 4, "only the last is kept"
