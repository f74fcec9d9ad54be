"""Answers by a program instead of a person, for experiments."""

from __future__ import annotations

from collections.abc import Callable

from cofal.data.imageset import ImageSet
from cofal.errors import UserError
from cofal.labeling.merging import Incoming
from cofal.labeling.store import LabelStore


def answer_by(store: LabelStore, oracle: Callable[[str], str | None], annotator: str = "oracle") -> int:
    """Label every open question of a site with the class that `oracle` names for its id; returns how many.

    None leaves a question open.
    """
    found = [(query.id, oracle(query.id)) for query in store.queries(state="open")]
    answers = {sample: Incoming(sample, label, None, annotator) for sample, label in found if label is not None}
    outcome = store.merge(answers.values(), "oracle")
    if outcome.unknown_classes:
        sample, label = outcome.unknown_classes[0]
        raise UserError(f"the oracle calls {sample!r} {label!r}, which is no class of this site")
    return outcome.added


def truth_of(images: ImageSet) -> Callable[[str], str | None]:
    """An oracle that knows the labels of an image set."""
    labels = dict(zip(images.ids, images.labels.tolist(), strict=True))
    return lambda sample: images.classes[labels[sample]] if labels.get(sample, -1) >= 0 else None
