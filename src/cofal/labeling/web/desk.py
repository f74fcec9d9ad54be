"""What the page can do with a site's store, in the page's terms: picture keys instead of ids, plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cofal.errors import UserError
from cofal.federation.site import Site
from cofal.labeling.reasons import explain
from cofal.labeling.records import Answer, Query
from cofal.labeling.store import LabelStore
from cofal.labeling.web.pictures import Pictures

_TRAIL = 50  # answers of an annotator that Back can reach after a reload
_MOST_LATER = 20  # images one annotator may put off; each stays kept for him
_PAGE, _LAST_PAGE = 60, 10**9  # cards on a page of the grid; the database counts to 2**63
_LONGEST = 3600.0  # seconds; a longer answer was a lunch break


class Desk:
    """One site's questions, answers and pictures. Any number of threads may use it."""

    def __init__(self, site: Site, store: LabelStore, pictures: Pictures):
        self.site, self.store, self.pictures = site, store, pictures
        self._later: dict[str, list[str]] = {}  # by annotator, ids put off; a restart brings them back in rank order
        self._looking: dict[str, str] = {}  # by annotator, the answered image he looks at again: kept for him meanwhile

    # --- labelling

    def next(self, annotator: str) -> dict[str, Any]:
        """The open question in front of `annotator`: just what the next image needs, so that it shows at once."""
        self._look_away(annotator)
        later = self._later.get(annotator, [])
        claimed = self.store.claim_ahead(annotator, 2 + len(later))
        put_off = sorted((query for query in claimed if query.id in later), key=lambda query: later.index(query.id))
        turn = [query for query in claimed if query.id not in later] + put_off
        self._later[annotator] = [query.id for query in put_off]
        return {
            "item": {**self._item(turn[0], blind=annotator), "others": len(turn) > 1} if turn else None,
            "upcoming": self.pictures.key(turn[1].id) if len(turn) > 1 else None,
            **self._past(annotator),
        }

    def around(self, annotator: str, key: str) -> dict[str, Any]:
        """Why an image was asked, and its nearest labelled neighbours at this site."""
        told = explain(self.site, self.store, self.store.query(self.pictures.sample(key)), annotator)
        return {
            "why": told.sentences,
            "neighbours": [
                {"key": self.pictures.key(neighbour.id), "label": neighbour.label} for neighbour in told.neighbours
            ],
        }

    def later(self, annotator: str, key: str) -> None:
        """Put an open question off: it comes again when the others are answered."""
        sample = self.pictures.sample(key)
        others = [other for other in self._later.get(annotator, []) if other != sample]
        self._later[annotator] = [*others, sample][-_MOST_LATER:]

    def label(self, annotator: str, key: str, class_name: str, seconds: float) -> None:
        """The annotator's answer; on a settled dispute, the word that settles it anew."""
        sample = self.pictures.sample(key)
        if self.store.query(sample).resolved_by is not None:
            self.store.resolve(sample, class_name, annotator)
        else:
            self.store.label(sample, class_name, annotator, min(seconds, _LONGEST))

    def skip(self, annotator: str, key: str, reason: str, seconds: float) -> None:
        sample = self.pictures.sample(key)
        if self.store.query(sample).resolved_by is not None:
            self.store.resolve(sample, None, annotator, reason=reason)
        else:
            self.store.skip(sample, reason, annotator, min(seconds, _LONGEST))

    def undo(self, annotator: str, action: int) -> str | None:
        """Take back the annotator's action of that number, if it is still his last: a repeated request does nothing.

        Returns the key of its picture.
        """
        last = self.store.standing(annotator, limit=1)
        if not last or last[0].number != action:
            return None
        self.store.undo(annotator)
        if self._looking.get(annotator) == last[0].sample:
            del self._looking[annotator]  # it is an open question again, the one in front of him
        return self.pictures.key(last[0].sample)

    def item(self, annotator: str, key: str) -> dict[str, Any]:
        """An image that has an answer, to look at again or correct; nobody else gets it until he looks elsewhere."""
        sample = self.pictures.sample(key)
        if (query := self.store.query(sample)).state == "open" and query.held_by is None:
            raise UserError("this image has no answer yet; it comes up under Label")
        if self._looking.get(annotator) != sample:
            self._look_away(annotator)
        query = self.store.hold(sample, annotator)
        if query.held_by is None:
            self._looking[annotator] = sample
        wanted = self.store.wants_opinion_of(annotator, sample)
        return {**self._item(query, blind=annotator if wanted else None), "others": False}

    def _look_away(self, annotator: str) -> None:
        if (sample := self._looking.pop(annotator, None)) is not None:
            self.store.release(annotator, sample)

    def _item(self, query: Query, *, blind: str | None) -> dict[str, Any]:
        """`blind`: the annotator who must not see what others answered, because a second opinion is asked of him."""
        given = [answer for answer in self._answers(query.id) if blind in (None, answer.annotator)]
        return {
            "key": self.pictures.key(query.id),
            "sample": query.id,
            "rank": query.rank + 1,
            "label": query.label if blind is None else None,
            "reason": query.reason if blind is None else None,
            "settled_by": query.resolved_by if blind is None else None,
            "opinions": [_opinion(answer) for answer in given],
        }

    def _past(self, annotator: str) -> dict[str, Any]:
        """What Undo would take back, and what Back leads to (keys, oldest first)."""
        standing = self.store.standing(annotator, limit=_TRAIL)
        trail = list(dict.fromkeys(event.sample for event in standing if event.action != "resolve"))
        undoable = None
        if standing:
            after = standing[0].after or {}
            undoable = {"action": standing[0].number, "text": after.get("label") or f"skipped, {after.get('reason')}"}
        return {"undoable": undoable, "trail": [self.pictures.key(sample) for sample in reversed(trail)]}

    # --- the grid, and disagreements

    def review(self, viewer: str, *, state: str, label: str, annotator: str, page: int) -> dict[str, Any]:
        """One page of the questions that fit the filters; an empty filter fits all."""
        self._look_away(viewer)
        filters = {"state": state, "label": label, "annotator": annotator, "viewer": viewer}
        page = min(max(page, 0), _LAST_PAGE)
        total, found = self.store.page(**filters, limit=_PAGE, offset=page * _PAGE)
        if not found and page:  # the filter has emptied this page meanwhile
            page = max(0, total - 1) // _PAGE
            total, found = self.store.page(**filters, limit=_PAGE, offset=page * _PAGE)
        ids = [query.id for query in found]
        answers = self.store.answers(*ids) if ids else {}
        wanted = self.store.wants_opinion_of(viewer, *ids) if ids else set()
        return {
            "items": [self._card(query, answers.get(query.id, []), blind=query.id in wanted) for query in found],
            "total": total,
            "page": page,
            "pages": max(1, -(-total // _PAGE)),
        }

    def _card(self, query: Query, answers: list[Answer], *, blind: bool) -> dict[str, Any]:
        """`blind`: the viewer's second opinion is wanted, so he must not see the first."""
        return {
            "key": self.pictures.key(query.id),
            "sample": query.id,
            "state": "wanted" if blind else query.state,
            "label": None if blind else query.label,
            "reason": None if blind else query.reason,
            "by": [] if blind else [answer.annotator for answer in answers],
        }

    def disagreements(self) -> dict[str, Any]:
        """The disputes (a page of them) and the agreement of all pairs of annotators."""
        _, disputed = self.store.page(state="disputed", limit=_PAGE)
        return {
            "items": [
                {
                    "key": self.pictures.key(query.id),
                    "sample": query.id,
                    "opinions": [_opinion(answer) for answer in self._answers(query.id)],
                }
                for query in disputed
            ],
            "agreement": asdict(self.store.agreement()),
        }

    def resolve(self, annotator: str, key: str, class_name: str | None, reason: str | None = None) -> None:
        """Settle a dispute: with a class, or as a skip for a reason."""
        self.store.resolve(self.pictures.sample(key), class_name, annotator, reason=reason)

    def progress(self) -> dict[str, Any]:
        found = self.store.progress()
        return {**asdict(found), "annotators": sorted(found.annotators), "left": found.open + found.second_opinions}

    def _answers(self, sample: str) -> list[Answer]:
        return self.store.answers(sample).get(sample, [])


def _opinion(answer: Answer) -> dict[str, str | None]:
    return {"annotator": answer.annotator, "label": answer.label, "reason": answer.reason}
