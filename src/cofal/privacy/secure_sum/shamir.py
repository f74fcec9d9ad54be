"""Shamir's secret sharing of byte arrays: every byte is the constant term of its own polynomial over GF(256)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

MOST = 255  # holders: the points 1..255 of the field, 0 being the secret's


@cache
def _products() -> np.ndarray:
    """(256, 256) uint8: the product of each two elements of GF(256), modulo x^8 + x^4 + x^3 + x + 1."""
    left, right = np.arange(256)[:, None], np.arange(256)[None, :]
    product = np.zeros((256, 256), dtype=np.int64)
    for bit in range(8):
        product ^= np.where(right >> bit & 1, left, 0)
        left = left << 1
        left = np.where(left & 0x100, left ^ 0x11B, left)
    return product.astype(np.uint8)


@cache
def _inverses() -> np.ndarray:
    """(256,) uint8: multiplicative inverses; that of 0 is never asked for."""
    inverses: np.ndarray = np.argmax(_products() == 1, axis=1).astype(np.uint8)
    return inverses


def split(secret: np.ndarray, coefficients: np.ndarray, holders: int) -> np.ndarray:
    """(holders, ...) uint8: the share of each holder of the uint8 array `secret` (...).

    `coefficients` (t - 1, ...) must be uniformly random and used once: any t shares then give the secret,
    and any t - 1 are independent of it. Holder k (from 0) has the point k + 1.
    """
    if not len(coefficients) < holders <= MOST:
        raise ValueError(f"{holders} holders cannot share with threshold {len(coefficients) + 1}")
    shares = np.zeros((holders, *secret.shape), dtype=np.uint8)
    for holder in range(holders):
        times_point = _products()[holder + 1]
        value = shares[holder]
        for coefficient in reversed(coefficients):
            value = times_point[value ^ coefficient]
        shares[holder] = value ^ secret
    return shares


def join(holders: Sequence[int], shares: np.ndarray) -> np.ndarray:
    """The secret (...) from the `shares` (t, ...) of the distinct `holders` (t,); with fewer than t it is noise."""
    points = np.array(holders, dtype=np.int64) + 1
    if len(set(holders)) != len(holders) or not len(holders) == len(shares) > 0:
        raise ValueError("join needs one share of each of at least one holder")
    secret = np.zeros(shares.shape[1:], dtype=np.uint8)
    for point, share in zip(points, shares):
        weight = np.uint8(1)  # the Lagrange weight at 0: the product of other / (other - point); minus is xor
        for other in points[points != point]:
            weight = _products()[weight, _products()[other, _inverses()[other ^ point]]]
        secret ^= _products()[weight][share]
    return secret
