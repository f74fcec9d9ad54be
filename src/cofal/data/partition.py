"""Dividing one image set among clients: stratified at random, by Dirichlet label distributions, or by a column.

Pure functions of labels and a generator; nothing here knows of images.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from cofal.errors import UserError

Split = Literal["iid", "dirichlet", "by-column"]


def partition(
    labels: np.ndarray,
    clients: int | None,
    *,
    split: Split,
    alpha: float | None = None,
    groups: list[str] | None = None,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """The sorted rows of each client; every row of `labels` (n,) belongs to exactly one.

    `iid` deals every class out evenly. `dirichlet` gives client k a label distribution near p_k ~ Dir(alpha 1). Both
    make client sizes equal to within one. `by-column` makes a client of each distinct value in `groups`, in sorted
    order; `clients` then only checks the number and may be None.
    """
    labels = np.asarray(labels)
    if split == "by-column":
        return _by_column(groups, len(labels), clients)
    if clients is None or clients < 1:
        raise UserError(f"clients = {clients}: a split needs at least one client")
    if clients > len(labels):
        raise UserError(
            f"clients = {clients} but there are only {len(labels)} images; use fewer clients or more images"
        )
    if split == "iid":
        return _iid(labels, clients, rng)
    if split == "dirichlet":
        if alpha is None or not math.isfinite(alpha) or alpha <= 0:
            raise UserError(f"alpha = {alpha}: a Dirichlet split needs a positive number, such as 0.1")
        return _dirichlet(labels, clients, alpha, rng)
    raise UserError(f"split = {split!r} is unknown; choose iid, dirichlet or by-column")


def client_sizes(samples: int, clients: int) -> np.ndarray:
    """(clients,) sizes that add up to `samples` and differ by at most one."""
    return np.full(clients, samples // clients) + (np.arange(clients) < samples % clients)


def _by_column(groups: list[str] | None, samples: int, clients: int | None) -> list[np.ndarray]:
    if groups is None:
        raise UserError("split = 'by-column' but the data has no column; name it with data.column")
    if len(groups) != samples:
        raise UserError(f"the column has {len(groups)} values for {samples} images")
    names = sorted(set(groups))
    if clients is not None and clients != len(names):
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise UserError(
            f"clients = {clients} but the column has {len(names)} values ({shown}); set clients = {len(names)}"
        )
    values = np.asarray(groups)
    return [np.flatnonzero(values == name) for name in names]


def _iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    # Dealing the shuffled classes out like one deck of cards evens out each class and each hand at once.
    shuffled = rng.permutation(len(labels))
    deck = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return [np.sort(deck[seat::clients]) for seat in rng.permutation(clients)]


def _dirichlet(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    values, class_of, class_counts = np.unique(labels, return_inverse=True, return_counts=True)
    log_p = log_dirichlet(alpha, clients, len(values), rng)
    quotas = integer_table(fit_margins(log_p, client_sizes(len(labels), clients), class_counts), class_counts)
    owner = np.empty(len(labels), dtype=np.int64)
    for column in range(len(values)):
        rows = rng.permutation(np.flatnonzero(class_of == column))
        owner[rows] = np.repeat(np.arange(clients), quotas[:, column])
    return [np.flatnonzero(owner == client) for client in range(clients)]


def log_dirichlet(alpha: float, clients: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """(clients, classes) logarithms of draws from Dir(alpha 1).

    Gamma(alpha) draws underflow to zero for small alpha, so they are made in logarithms: if g ~ Gamma(alpha + 1) and
    u ~ U(0, 1), then g u^(1/alpha) ~ Gamma(alpha).
    """
    shape = (clients, classes)
    log_gamma = np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random(shape)) / max(alpha, 1e-300)
    log_gamma -= log_gamma.max(axis=1, keepdims=True)
    return log_gamma - np.log(np.exp(log_gamma).sum(axis=1, keepdims=True))


def fit_margins(log_p: np.ndarray, rows: np.ndarray, columns: np.ndarray, tolerance: float = 0.01) -> np.ndarray:
    """The (K, C) table with row sums `rows` and (within `tolerance` samples) column sums `columns` closest to p.

    It is the table T minimising the Kullback-Leibler divergence from rows[k] p[k, c], which has the form
    p[k, c] a[k] b[c]: iterative proportional fitting, in logarithms. For small alpha the entries of p span hundreds of
    orders of magnitude and plain fitting crawls; so it is first fitted to p^t for small t, and t is doubled up to 1,
    each fit starting from the last.
    """
    span = max(1.0, float(-log_p.min()))
    log_p = log_p * min(
        1.0, 1e6 / span
    )  # beyond this only the order of the entries matters, and precision would be lost
    log_rows, log_columns = np.log(rows), np.log(columns)
    a, b = np.zeros(len(rows)), np.zeros(len(columns))
    steps = math.ceil(math.log2(min(span, 1e6)))
    for step in range(steps, -1, -1):
        power = 2.0**-step
        a, b = 2 * a, 2 * b  # the scalings of p^2t are about twice those of p^t
        for _ in range(500 if step == 0 else 30):
            b = log_columns - _logsumexp(power * log_p + a[:, None], axis=0)
            a = log_rows - _logsumexp(power * log_p + b[None, :], axis=1)
            table = np.exp(power * log_p + a[:, None] + b[None, :])
            if np.abs(table.sum(axis=0) - columns).max() < tolerance:
                break
    return table


def integer_table(table: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """`table` (K, C) rounded to whole numbers whose row sums differ by at most one and whose column sums are `columns`.

    Every cell is rounded down, then the missing samples go to the cells that lost most, as long as their row and their
    column still miss some.
    """
    rows = client_sizes(int(columns.sum()), len(table))
    whole = np.floor(table + 1e-9).astype(np.int64)
    _trim(whole, rows)
    _trim(whole.T, columns)
    row_gap, column_gap = rows - whole.sum(axis=1), columns - whole.sum(axis=0)
    by_loss = np.argsort(-(table - whole), axis=None, kind="stable")
    for most in (1, int(columns.sum())):  # one a cell; then, where that left a row and a column wanting, what both want
        for cell in by_loss:
            row, column = divmod(int(cell), table.shape[1])
            given = min(most, row_gap[row], column_gap[column])
            whole[row, column] += given
            row_gap[row] -= given
            column_gap[column] -= given
    return whole


def _trim(whole: np.ndarray, sums: np.ndarray) -> None:
    """Lower the largest cells of any row whose sum lies above its due (the fit is exact only to its tolerance)."""
    for row, due in enumerate(sums):
        while (excess := int(whole[row].sum() - due)) > 0:
            largest = int(whole[row].argmax())
            whole[row, largest] -= min(excess, int(whole[row, largest]))


def _logsumexp(values: np.ndarray, axis: int) -> np.ndarray:
    top = values.max(axis=axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.exp(values - top).sum(axis=axis))
