"""Dividing a total budget: exact, within capacity, and cumulative."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cofal.errors import UserError
from cofal.selection.shares import divide


def test_equal_weights_differ_by_at_most_one():
    assert divide(10, [1, 1, 1, 1], [9] * 4) == [3, 3, 2, 2]


def test_proportional():
    assert divide(10, [300, 100, 100], [300, 100, 100]) == [6, 2, 2]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), min_size=1, max_size=8), st.integers(0, 60))
def test_sums_up_stays_within_capacity_and_grows_monotonically(clients, total):
    weights, capacity = [c[0] for c in clients], [c[1] for c in clients]
    assume(total <= sum(room for room, weight in zip(capacity, weights) if weight))
    parts = divide(total, weights, capacity)
    assert sum(parts) == total
    assert all(0 <= part <= room for part, room in zip(parts, capacity))
    assert all(part == 0 for part, weight in zip(parts, weights) if weight == 0)
    if total:
        assert all(a <= b for a, b in zip(divide(total - 1, weights, capacity), parts))


def test_a_budget_above_the_pool_is_refused():
    with pytest.raises(UserError, match="11"):
        divide(11, [1, 1], [5, 5])
