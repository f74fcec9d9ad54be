"""Numbers that a caller gives a selector: what is taken as one, and what is said of anything else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from cofal.errors import UserError

FARTHEST = 2.0  # no unit row is farther from another
WIDEST = 1e6  # a wider kernel sees no difference between rows, and its square would overflow
SHARPEST = 1e-4  # a narrower kernel sees nothing but the rounding of float32 rows, and its values overflow
MOST_TRIPS = 1000  # k-means round trips at most; each question tells the centres of all before it
MOST = 10**6  # samples of a group; sums over many clients of counts in steps of it stay below 2**31


def plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with numpy's scalars as the Python numbers they stand for."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}


def checked_radius(delta: Any) -> float | str:
    """The radius between unit rows, above 0 and at most `FARTHEST`, or "auto"."""
    if isinstance(delta, str) and delta == "auto":
        return delta
    if not (_is_number(delta) and 0 < delta <= FARTHEST):
        raise UserError(
            f"delta = {told(delta)} is no radius between unit rows; use a number above 0 and at most {FARTHEST:g}, "
            "or 'auto'"
        )
    return float(delta)


def checked_lengthscale(lengthscale: Any) -> float:
    if not (_is_number(lengthscale) and lengthscale > 0):
        raise UserError(f"lengthscale = {told(lengthscale)} is not a number above 0; use 1.0 if unsure")
    if not SHARPEST <= lengthscale <= WIDEST:
        raise UserError(
            f"lengthscale = {told(lengthscale)} is out of proportion: rows lie 0 to 2 apart; "
            f"use {SHARPEST:g} to {WIDEST:,.0f} (1.0 if unsure)"
        )
    return float(lengthscale)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether `value` is a whole number, Python's or numpy's; a truth value is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_whole(name: str, value: Any, what: str, least: int, most: float = math.inf, usual: str = "") -> None:
    """Raise if `value` is no whole number from `least` to `most`; `what` it counts, and a `usual` one, are told."""
    if not (is_whole(value) and least <= value <= most):
        limits = f"of at least {least}" if most == math.inf else f"from {least} to {most:,.0f}"
        raise UserError(f"{name} = {told(value)} must be a whole number of {what}, {limits}{usual}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def told(value: Any) -> str:
    """The value on one line, however long it is."""
    return " ".join(repr(value)[:100].split())
