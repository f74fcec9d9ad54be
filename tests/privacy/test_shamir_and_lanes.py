"""Shares give the secret at the threshold and nothing below it; packed words add up to exact totals."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cofal.privacy.secure_sum import lanes, shamir


def slow_product(left: int, right: int) -> int:
    """Multiplication of polynomials over GF(2), reduced by x^8 + x^4 + x^3 + x + 1 at the end."""
    product = 0
    for bit in range(8):
        if right >> bit & 1:
            product ^= left << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << (bit - 8)
    return product


def slow_share(secret: int, coefficients: list[int], point: int) -> int:
    value, power = secret, 1
    for coefficient in coefficients:
        power = slow_product(power, point)
        value ^= slow_product(coefficient, power)
    return value


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_threshold_of_shares_gives_the_secret(data):
    holders = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, holders))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    secret = rng.integers(0, 256, (3, 5), dtype=np.uint8)
    coefficients = rng.integers(0, 256, (threshold - 1, 3, 5), dtype=np.uint8)
    shares = shamir.split(secret, coefficients, holders)
    chosen = data.draw(st.permutations(range(holders)))[: data.draw(st.integers(threshold, holders))]
    assert np.array_equal(shamir.join(chosen, shares[chosen]), secret)


def test_shares_are_the_polynomials_values():
    rng = np.random.default_rng(0)
    secret = rng.integers(0, 256, 4, dtype=np.uint8)
    coefficients = rng.integers(0, 256, (3, 4), dtype=np.uint8)
    shares = shamir.split(secret, coefficients, 255)
    for holder, place in itertools.product((0, 1, 100, 254), range(4)):
        expected = slow_share(int(secret[place]), coefficients[:, place].tolist(), holder + 1)
        assert shares[holder, place] == expected


def test_the_field_is_a_field():
    products = shamir._products()
    rng = np.random.default_rng(1)
    for left, right in rng.integers(0, 256, (200, 2)):
        assert products[left, right] == slow_product(int(left), int(right))
    for row in products[1:]:
        assert sorted(row) == list(range(256))  # no divisors of zero


@pytest.mark.parametrize("threshold", [2, 3])
def test_fewer_shares_fit_every_secret_equally(threshold):
    """For each secret, the shares of any threshold - 1 holders take every value equally often: they say nothing."""
    free = np.indices((256,) * (threshold - 1), dtype=np.uint8).reshape(threshold - 1, -1)  # all coefficients there are
    for secret in (0, 1, 200):
        shares = shamir.split(np.full(free.shape[1], secret, dtype=np.uint8), free, 4)
        for seen in itertools.combinations(range(4), threshold - 1):
            view = np.ravel_multi_index(tuple(shares[list(seen)].astype(np.int64)), (256,) * (threshold - 1))
            assert (np.bincount(view, minlength=256 ** (threshold - 1)) == 1).all()


def test_too_few_shares_do_not_give_the_secret():
    rng = np.random.default_rng(2)
    secret = rng.integers(0, 256, 32, dtype=np.uint8)
    shares = shamir.split(secret, rng.integers(0, 256, (3, 32), dtype=np.uint8), 6)
    for seen in itertools.combinations(range(6), 3):
        assert (shamir.join(seen, shares[list(seen)]) != secret).sum() > 24


def test_impossible_sharings_are_refused():
    with pytest.raises(ValueError, match="cannot share"):
        shamir.split(np.zeros(1, dtype=np.uint8), np.zeros((3, 1), dtype=np.uint8), 3)
    with pytest.raises(ValueError, match="cannot share"):
        shamir.split(np.zeros(1, dtype=np.uint8), np.zeros((1, 1), dtype=np.uint8), 256)
    with pytest.raises(ValueError, match="one share of each"):
        shamir.join([1, 1], np.zeros((2, 1), dtype=np.uint8))


# --- lanes


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_packed_words_add_up(data):
    """Any numbers whose totals are within four bytes, even where partial sums are not."""
    size, clients = data.draw(st.integers(0, 7)), data.draw(st.integers(1, 6))
    number = st.integers(-(2**31), 2**31 - 1)
    rows = np.array(
        data.draw(st.lists(st.lists(number, min_size=size, max_size=size), min_size=clients, max_size=clients)),
        dtype=np.int64,
    ).reshape(clients, size)
    exact = rows.sum(axis=0)
    fits = (exact >= -(2**31)) & (exact < 2**31)
    rows[:, ~fits] = 0
    words = np.zeros((size + 1) // 2, dtype=np.uint64)
    for row in rows:
        words += lanes.pack({"x": row.astype(np.int32)})
    assert np.array_equal(lanes.unpack(words, {"x": (size,)})["x"], rows.sum(axis=0))


def test_lanes_hold_the_extremes_side_by_side():
    ends = [-(2**31), -1, 0, 1, 2**31 - 1]
    for low, high in itertools.product(ends, ends):
        arrays = {"x": np.array([low, high], dtype=np.int32)}
        assert lanes.unpack(lanes.pack(arrays), {"x": (2,)})["x"].tolist() == [low, high]


def test_arrays_keep_name_and_shape():
    arrays = {
        "b": np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1],
        "a": np.int32(-5) * np.ones((), dtype=np.int32),
        "c": np.zeros((0, 4), dtype=np.int32),
    }
    shapes = {name: array.shape for name, array in arrays.items()}
    packed = lanes.pack(arrays)
    assert len(packed) == lanes.words(shapes) == 4
    back = lanes.unpack(packed, shapes)
    assert all(np.array_equal(back[name], array) and back[name].shape == array.shape for name, array in arrays.items())
    assert all(array.dtype == np.int64 for array in back.values())
