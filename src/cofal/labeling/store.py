"""A site's store of questions and labels: one SQLite file that several annotators and processes use at once.

Every method is one transaction. What was answered is never changed without a line in the audit trail, and one
annotator's answer never replaces another's: different answers are a dispute that someone resolves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, and_, delete, func, select
from sqlalchemy.dialects.sqlite import insert as upsert

from cofal.errors import UserError
from cofal.labeling import answering, asking, measuring, merging
from cofal.labeling.agreement import Agreement, agreement
from cofal.labeling.merging import Incoming, Outcome
from cofal.labeling.records import (
    REASONS,
    Answer,
    Event,
    Progress,
    Query,
    check_annotator,
    check_reason,
    check_seconds,
)
from cofal.labeling.schema import FILE, Database, answers, events, leases, queries, samples, settings


class LabelStore:
    """The questions put to a site's annotators and what they answered; safe to open from any number of processes."""

    def __init__(self, folder: Path, database: Database, clock: Callable[[], float]):
        self.folder, self.path = folder, database.path
        self._database, self._clock = database, clock

    @classmethod
    def open(
        cls, folder: Path | str, classes: Sequence[str] | None = None, *, clock: Callable[[], float] = time.time
    ) -> LabelStore:
        """The store of the site in `folder`, made if there is none.

        classes: the names that a label may have; kept in the store, so that whoever opens it later need not know them.
        clock: seconds since 1970; leases end by it.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"no site at {folder}; make one first")
        store = cls(folder, Database(folder / FILE), clock)
        if classes is not None and list(classes) != store.classes:
            store._set_classes(list(classes))
        return store

    def backup(self, out: Path | str) -> None:
        """A copy of the store as it is now, in the new file `out`."""
        if Path(out).exists():
            raise UserError(f"{out} exists; choose another name for the backup")
        self._database.backup(Path(out))

    def close(self) -> None:
        self._database.close()

    # --- settings of the store

    @property
    def classes(self) -> list[str]:
        """The names that a label may have; empty as long as nobody told."""
        return list(self._setting("classes", []))

    def _set_classes(self, classes: list[str]) -> None:
        with self._database.writing() as connection:
            used = set(connection.execute(select(answers.c.label).where(answers.c.label.is_not(None))).scalars())
            if lost := sorted(used - set(classes)):
                raise UserError(f"{self.path} has labels of the class {lost[0]!r}, which the site no longer lists")
            _set(connection, "classes", classes)

    @property
    def overlap(self) -> float:
        """Share of the images that a second annotator labels as well, 0 to 1."""
        return float(self._setting("overlap", 0.0))

    def set_overlap(self, share: float) -> None:
        """Ask for second opinions on that share of the images, from now on and of those already labelled."""
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise UserError(f"overlap share {share!r} is not between 0 and 1")
        with self._database.writing() as connection:
            _set(connection, "overlap", float(share))

    def _setting(self, key: str, default: Any) -> Any:
        with self._database.reading() as connection:
            return _get(connection, key, default)

    # --- questions

    def ask(
        self, track: str, ids: Sequence[str], *, why: Mapping[str, Mapping[str, Any]] | None = None, selection: str = ""
    ) -> None:
        """Set the samples asked in `track`, in rank order: the whole list each time, so asking again changes nothing.

        why: by id, what to tell the annotator of the reason; kept from the first time a sample is asked.
        selection: which selection chose the new ones; by itself, its number in the track, from 1.
        A sample that is no longer in the list is withdrawn; its answers stay, and count again if it is asked again.
        """
        if len(set(ids)) != len(ids):
            raise UserError(f"track {track} asks for a sample twice; send each id once")
        with self._database.writing() as connection:
            asking.set_list(connection, track, ids, why or {}, selection)

    def asked(self, track: str) -> list[str]:
        """Ids asked in `track`, in rank order, whatever became of them."""
        listed = select(queries.c.sample).where(queries.c.track == track, queries.c.withdrawn_at.is_(None))
        with self._database.reading() as connection:
            return list(connection.execute(listed.order_by(queries.c.rank)).scalars())

    def queries(self, track: str | None = None, *, state: str = "") -> list[Query]:
        """Questions in rank order (those of one track, or in one state, only); withdrawn ones are left out."""
        chosen = asking.filtered(asking.questions(self._clock(), track), state, "", "")
        with self._database.reading() as connection:
            rows = connection.execute(chosen.order_by(queries.c.rank, queries.c.track))
            return [asking.as_query(row) for row in rows]

    def page(
        self, *, state: str = "", label: str = "", annotator: str = "", viewer: str = "", limit: int, offset: int = 0
    ) -> tuple[int, list[Query]]:
        """How many questions fit the filters (empty: any), and one page of them in rank order.

        label: their final class; annotator: someone who answered them.
        viewer: who looks. What waits for his second opinion is in no class for him: he must not learn the first.
        """
        chosen = asking.filtered(asking.questions(self._clock(), None), state, label, annotator)
        with self._database.reading() as connection:
            if label and viewer:
                chosen = chosen.where(~asking.second_opinion_of(viewer, _get(connection, "overlap", 0.0)))
            total = connection.execute(select(func.count()).select_from(chosen.subquery())).scalar_one()
            rows = connection.execute(chosen.order_by(queries.c.rank, queries.c.track).limit(limit).offset(offset))
            return total, [asking.as_query(row) for row in rows]

    def query(self, sample: str) -> Query:
        """One question by the id of its sample, also a withdrawn one."""
        with self._database.reading() as connection:
            return asking.question(connection, sample, self._clock())

    # --- handing out work

    def claim(self, annotator: str, track: str | None = None) -> Query | None:
        """The next image for `annotator`, kept for him for some minutes; the same one until it is answered."""
        return next(iter(self.claim_ahead(annotator, 1, track)), None)

    def claim_ahead(self, annotator: str, count: int, track: str | None = None) -> list[Query]:
        """Up to `count` next images for `annotator`, all kept for him, those he had before first.

        No image is in front of two annotators at once: the overlap share is asked of the second one when the first
        has answered. Claiming again renews the leases.
        """
        with self._database.writing() as connection:
            overlap = _get(connection, "overlap", 0.0)
            return asking.hand_out(connection, check_annotator(annotator), count, track, overlap, self._clock())

    def hold(self, sample: str, annotator: str) -> Query:
        """Put one image in front of `annotator`, to look at it again; refused while another has it.

        Returns the question as it was before, `held_by` included.
        """
        annotator = check_annotator(annotator)
        with self._database.writing() as connection:
            query = asking.question(connection, sample, self._clock())
            if query.held_by not in (None, annotator):
                raise UserError(f"{query.held_by} has this image open now; look again in a while")
            asking.lease(connection, sample, annotator, self._clock())
            return query

    def release(self, annotator: str, sample: str | None = None) -> None:
        """Give back what `annotator` has in front of him (that one sample, or all), so that others get it at once."""
        given_back = delete(leases).where(leases.c.annotator == check_annotator(annotator))
        with self._database.writing() as connection:
            connection.execute(given_back if sample is None else given_back.where(leases.c.sample == sample))

    def wants_opinion_of(self, annotator: str, *only: str) -> set[str]:
        """Which samples (of those in `only`, or of all) wait for a second opinion that `annotator` could give."""
        with self._database.reading() as connection:
            waiting = asking.second_opinion_of(annotator, _get(connection, "overlap", 0.0))
            chosen = select(samples.c.id).where(waiting)
            return set(connection.execute(chosen.where(samples.c.id.in_(only)) if only else chosen).scalars())

    # --- answers

    def label(self, sample: str, class_name: str, annotator: str, seconds: float | None = None) -> Query:
        """Record that `annotator` sees `class_name`; his earlier answer is corrected, others' are left as they are."""
        with self._database.writing() as connection:
            return self._answer(connection, sample, (self._named(connection, class_name), None), annotator, seconds)

    def skip(self, sample: str, reason: str, annotator: str, seconds: float | None = None) -> Query:
        """Record that `annotator` gives no label, for one of `REASONS`: the sample leaves the pool of selections."""
        with self._database.writing() as connection:
            return self._answer(connection, sample, (None, check_reason(reason)), annotator, seconds)

    def _answer(
        self,
        connection: Connection,
        sample: str,
        value: tuple[str | None, str | None],
        annotator: str,
        seconds: float | None,
    ) -> Query:
        answering.sample_row(connection, sample)
        answer = Answer(check_annotator(annotator), *value, check_seconds(seconds), answering.now())
        answering.put_answer(connection, sample, answer, answering.PAGE)
        held = and_(leases.c.sample == sample, leases.c.annotator == answer.annotator)
        connection.execute(delete(leases).where(held))
        return asking.question(connection, sample, self._clock())

    def resolve(self, sample: str, class_name: str | None, annotator: str, *, reason: str | None = None) -> Query:
        """Settle a sample: with a class, or (class None) as a skip for `reason`. The answers themselves are kept."""
        if (class_name is None) == (reason is None):
            raise UserError(f"resolve {sample!r} either with a class or with a reason out of {', '.join(REASONS)}")
        with self._database.writing() as connection:
            value = (
                None if class_name is None else self._named(connection, class_name),
                None if reason is None else check_reason(reason),
            )
            answering.put_resolution(connection, sample, value, check_annotator(annotator), answering.PAGE)
            return asking.question(connection, sample, self._clock())

    def undo(self, annotator: str) -> Query | None:
        """Take back the annotator's latest answer or resolution on the page; None if there is none left.

        The sample is in front of him again, unless another annotator has it now (`held_by` tells).
        """
        annotator = check_annotator(annotator)
        with self._database.writing() as connection:
            sample = answering.take_back(connection, annotator)
            if sample is None:
                return None
            if asking.question(connection, sample, self._clock()).held_by is None:
                asking.lease(connection, sample, annotator, self._clock())
            return asking.question(connection, sample, self._clock())

    def merge(self, incoming: Iterable[Incoming], source: str, *, overwrite: bool = False) -> Outcome:
        """Bring in answers given elsewhere, all or (if the process dies) none; see `merging` for what is kept."""
        with self._database.writing() as connection:
            classes = _get(connection, "classes", [])
            return merging.merge(connection, incoming, classes, source, overwrite=overwrite)

    def standing(self, annotator: str, limit: int = 50) -> list[Event]:
        """The annotator's latest actions on the page that were not taken back, newest first; undo takes the first."""
        with self._database.reading() as connection:
            return [Event(**row._mapping) for row in answering.standing(connection, check_annotator(annotator), limit)]

    def _named(self, connection: Connection, class_name: str) -> str:
        classes = _get(connection, "classes", [])
        if not isinstance(class_name, str) or not class_name:
            raise UserError(f"label {class_name!r} is not the name of a class; give a text")
        if classes and class_name not in classes:
            raise UserError(f"{class_name[:80]!r} is not a class of this site; known: {', '.join(classes)[:200]}")
        return class_name

    # --- what is known

    def labels(self, track: str | None = None) -> dict[str, str]:
        """Final labels by id, in rank order: what all who answered agree on, or what was resolved."""
        chosen = select(queries.c.sample, samples.c.label).join(samples, samples.c.id == queries.c.sample)
        chosen = chosen.where(queries.c.withdrawn_at.is_(None), samples.c.state == "labelled")
        if track is not None:
            chosen = chosen.where(queries.c.track == track)
        with self._database.reading() as connection:
            return dict(connection.execute(chosen.order_by(queries.c.rank, queries.c.track)).tuples().all())

    def skipped(self) -> dict[str, str]:
        """Reasons by id of the samples that were skipped, asked now or earlier."""
        chosen = select(samples.c.id, samples.c.reason).where(samples.c.state == "skipped").order_by(samples.c.id)
        with self._database.reading() as connection:
            return dict(connection.execute(chosen).tuples().all())

    def skipped_for(self, selection: str) -> set[str]:
        """Ids that were skipped when this was first asked for `selection`: its pool stays the same to its end."""
        key = f"moment of {selection}"
        with self._database.writing() as connection:
            moment = _get(connection, key, None)
            if moment is None:
                moment = answering.last_event(connection)
                _set(connection, key, moment)
            return measuring.skipped_as_of(connection, moment)

    def moment(self) -> int:
        """Number of the last line of the trail; it grows with every change of questions and answers."""
        with self._database.reading() as connection:
            return answering.last_event(connection)

    def answers(self, *only: str) -> dict[str, list[Answer]]:
        """By id, what each annotator answered, in the order of time; of the samples `only`, or of all."""
        chosen = select(answers).order_by(answers.c.at, answers.c.annotator)
        if only:
            chosen = chosen.where(answers.c.sample.in_(only))
        found: dict[str, list[Answer]] = {}
        with self._database.reading() as connection:
            for row in connection.execute(chosen):
                found.setdefault(row.sample, []).append(
                    Answer(row.annotator, row.label, row.reason, row.seconds, row.at)
                )
        return found

    def history(self, sample: str | None = None) -> list[Event]:
        """The audit trail of one sample, or all of it, oldest first."""
        chosen = select(events).order_by(events.c.number)
        if sample is not None:
            chosen = chosen.where(events.c.sample == sample)
        with self._database.reading() as connection:
            return [Event(**row._mapping) for row in connection.execute(chosen)]

    def progress(self, track: str | None = None) -> Progress:
        """Counts, what each annotator did, and how long the rest will take."""
        with self._database.reading() as connection:
            return measuring.progress(connection, track, _get(connection, "overlap", 0.0), self._clock() - asking.LEASE)

    def agreement(self) -> Agreement:
        """Cohen's kappa of every two annotators, on the samples that both labelled."""
        with self._database.reading() as connection:
            return agreement(measuring.shared_labels(connection))


def _get(connection: Connection, key: str, default: Any) -> Any:
    found = connection.execute(select(settings.c.value).where(settings.c.key == key)).first()
    return default if found is None else found[0]


def _set(connection: Connection, key: str, value: Any) -> None:
    connection.execute(upsert(settings).values(key=key, value=value).on_conflict_do_update(set_={"value": value}))
