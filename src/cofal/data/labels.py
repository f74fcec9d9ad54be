"""Labels as people store them (numbers, names, one-hot rows) to positions in a list of class names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cofal.errors import UserError

_MOST_CLASSES = 100_000  # a larger number without class names is not a class but some other column


def index_labels(
    raw: Sequence[tuple[str, np.ndarray]], classes: list[str] | None
) -> tuple[list[np.ndarray], list[str]]:
    """Each split's labels (n,) int64 with -1 for unknown, and the class names, shared by all splits.

    `raw` pairs the name of each split's label column, for errors, with its values (n,): whole numbers that count
    `classes` from 0, or names. Without `classes`, the names found or the numbers 0, 1, ... become the classes.
    """
    if any(values.dtype.kind in "US" for _, values in raw):
        texts = [(where, values.astype(str)) for where, values in raw]
        names = classes or sorted(set(np.concatenate([np.unique(values) for _, values in texts]).tolist()) - {""})
        return [_positions(where, values, names) for where, values in texts], names
    numbers = [_whole_numbers(where, values) for where, values in raw]
    top = max((int(values.max()) for values in numbers if len(values)), default=-1)
    if classes is None:
        if top >= _MOST_CLASSES:
            raise UserError(f"{raw[0][0]} goes up to {top}, too many for class numbers; name another label column")
        classes = [str(number) for number in range(top + 1)]
    for (where, _), values in zip(raw, numbers):
        wrong = np.flatnonzero((values < -1) | (values >= len(classes)))
        if len(wrong):
            raise UserError(
                f"{where} row {wrong[0]}: label {values[wrong[0]]} is out of range; the {len(classes)} classes "
                f"have the labels 0 to {len(classes) - 1}, and -1 stands for unknown"
            )
    return numbers, classes


def one_column(where: str, labels: np.ndarray) -> np.ndarray:
    """Labels (n,), (n, 1) or one-hot (n, classes) as (n,)."""
    if labels.ndim == 1:
        return labels
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    if labels.ndim == 2 and labels.dtype.kind in "biuf" and np.isin(labels, (0, 1)).all():
        if (labels.sum(axis=1) == 1).all():
            return labels.argmax(axis=1)
        raise UserError(f"{where} marks several classes for one image; cofal needs one label per image")
    raise UserError(f"{where} has the shape {labels.shape}; labels must be (n,), (n, 1) or one-hot (n, classes)")


def _positions(where: str, values: np.ndarray, names: list[str]) -> np.ndarray:
    number = {name: position for position, name in enumerate(names)} | {"": -1}
    distinct, inverse = np.unique(values, return_inverse=True)
    for name in distinct.tolist():
        if name not in number:
            raise UserError(
                f"{where} row {np.flatnonzero(values == name)[0]}: {name!r} is not among the {len(names)} classes"
            )
    return np.array([number[name] for name in distinct.tolist()], dtype=np.int64)[inverse]


def _whole_numbers(where: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -1, values)
        wrong = np.flatnonzero(values != np.rint(values))
        if len(wrong):
            raise UserError(f"{where} row {wrong[0]}: label {values[wrong[0]]} is not a whole number")
    elif values.dtype.kind not in "biu":
        raise UserError(f"{where} holds {values.dtype} values; labels must be whole numbers or names")
    if len(values) and values.max() > np.iinfo(np.int64).max:
        raise UserError(f"{where} row {values.argmax()}: label {values.max()} is out of range")
    return values.astype(np.int64)
