"""Cohen's kappa: how far annotators agree beyond what chance would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Pair:
    """Two annotators on the samples that both labelled."""

    first: str
    second: str
    images: int
    agreed: int
    kappa: float | None  # None: both always gave one and the same class, so chance agrees as well


@dataclass(frozen=True)
class Agreement:
    """All pairs of annotators with a sample in common; `kappa` is their mean, weighted by the samples in common."""

    kappa: float | None
    images: int
    pairs: list[Pair]


def cohen_kappa(first: Sequence[str], second: Sequence[str]) -> float | None:
    """(observed - expected) / (1 - expected) agreement of two lists of n labels; None if it is not defined."""
    total = len(first)
    if total == 0:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / total
    one, other = Counter(first), Counter(second)
    expected = sum(one[name] * other[name] for name in one) / total**2
    return None if expected == 1.0 else (observed - expected) / (1.0 - expected)


def agreement(labels: Iterable[Mapping[str, str]]) -> Agreement:
    """labels: for each sample, class by annotator."""
    common: dict[tuple[str, str], list[tuple[str, str]]] = {}
    images = 0
    for given in labels:
        images += len(given) > 1
        for pair in combinations(sorted(given), 2):
            common.setdefault(pair, []).append((given[pair[0]], given[pair[1]]))
    pairs = []
    for (one, other), both in sorted(common.items()):
        first, second = [a for a, _ in both], [b for _, b in both]
        agreed = sum(a == b for a, b in both)
        pairs.append(Pair(one, other, len(both), agreed, cohen_kappa(first, second)))
    defined = [(pair.kappa, pair.images) for pair in pairs if pair.kappa is not None]
    weight = sum(count for _, count in defined)
    mean = sum(kappa * count for kappa, count in defined) / weight if weight else None
    return Agreement(mean, images, pairs)
