"""Which rows of a source make the training and the test set: class list, held-out share, limits."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cofal.data.listing import Listing, Source
from cofal.data.settings import DataSettings
from cofal.errors import UserError
from cofal.rng import generator


@dataclass(frozen=True)
class Choice:
    """Rows of a listing, ascending."""

    listing: Listing
    rows: np.ndarray


def choose(source: Source, settings: DataSettings) -> tuple[Choice, Choice, list[str]]:
    """The rows for training, those for testing, and the class names."""
    if settings.class_list:
        source = _keep_classes(source, settings.class_list)
    train = Choice(source.train, np.flatnonzero(source.train.labels > -2))
    if source.test is None:
        if len(train.rows) < 2:
            raise UserError(
                f"{source.train.name} has {len(train.rows)} usable images; a training and a test set need two"
            )
        size = min(max(1, round(settings.test_share * len(train.rows))), len(train.rows) - 1)
        test = _take(train, size, settings.seed, "held out")
        train = Choice(train.listing, np.setdiff1d(train.rows, test.rows))
    else:
        test = Choice(source.test, np.flatnonzero(source.test.labels > -2))
    for choice in (train, test):
        if not len(choice.rows):
            raise UserError(f"{choice.listing.name} holds no image of the wanted classes; check path and class_list")
    if settings.limit is not None:
        train = _take(train, settings.limit, settings.seed, "limit")
    if settings.test_limit is not None:
        test = _take(test, settings.test_limit, settings.seed, "test limit")
    return train, test, source.classes


def stratified(labels: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """`size` positions of `labels` (n,), ascending, with each class in proportion (to within one)."""
    if size >= len(labels):
        return np.arange(len(labels))
    order = rng.permutation(len(labels))
    _, class_of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    shares = counts * (size / len(labels))
    quotas = np.floor(shares).astype(np.int64)
    quotas[np.argsort(quotas - shares, kind="stable")[: size - quotas.sum()]] += 1
    return np.sort(np.concatenate([order[class_of[order] == label][:quota] for label, quota in enumerate(quotas)]))


def _take(choice: Choice, size: int, seed: int, purpose: str) -> Choice:
    labels = choice.listing.labels[choice.rows]
    return Choice(choice.listing, choice.rows[stratified(labels, size, generator(seed, "data", purpose))])


def _keep_classes(source: Source, class_list: str) -> Source:
    """The source with the listed classes only, numbered in the order of the list; other images get the label -2.

    A source without class names (unlabelled images) takes the names from the list.
    """
    wanted = _read_class_list(class_list, source.classes)
    if not source.classes:
        return replace(source, classes=wanted)
    number = {name: position for position, name in enumerate(wanted)}
    renumber = np.array([number.get(name, -2) for name in source.classes] + [-1])  # the last entry serves label -1

    def kept(listing: Listing) -> Listing:
        return replace(listing, labels=renumber[listing.labels])

    return Source(wanted, kept(source.train), None if source.test is None else kept(source.test))


def _read_class_list(class_list: str, known: list[str]) -> list[str]:
    """The class of each line: the whole line or, as in lists such as `n01440764 tench`, its first word."""
    try:
        lines = Path(class_list).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read class_list = {class_list!r}: {error}") from error
    names = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if known:
        names = [name if name in known else name.split()[0] for name in names]
    for name in names:
        if known and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the data has {len(known)} classes, such as {known[0]!r}"
            raise UserError(f"class_list {class_list}: the data has no class {name!r}; {hint}")
    if not names or len(set(names)) != len(names):
        fault = "is empty" if not names else "names a class twice"
        raise UserError(f"class_list {class_list} {fault}; give one class per line")
    return names
