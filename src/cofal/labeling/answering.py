"""Changes of a sample's answers inside one transaction of the store, each with its line in the audit trail."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, exists, func, insert, select, update

from cofal.errors import UserError
from cofal.labeling.records import Answer
from cofal.labeling.schema import answers, events, samples

PAGE = "page"  # the source of what an annotator does by hand; only that is taken back by undo


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def put_answer(connection: Connection, sample: str, answer: Answer, source: str) -> bool:
    """Record an annotator's answer, also one that corrects his earlier one; False if he has said the same before."""
    before = answer_of(connection, sample, answer.annotator)
    if before is not None and before.value == answer.value:
        return False
    _replace(connection, sample, answer.annotator, answer)
    action = "label" if answer.label is not None else "skip"
    _note(connection, action, sample, answer.annotator, source, before=_plain(before), after=_plain(answer))
    return True


def put_resolution(
    connection: Connection, sample: str, value: tuple[str | None, str | None], by: str, source: str
) -> bool:
    """Settle a sample whatever its answers say; they are kept. False if it is settled so already."""
    row = sample_row(connection, sample)
    if row.resolved_by is not None and (row.label, row.reason) == value:
        return False
    before = {"label": row.label, "reason": row.reason, "resolved_by": row.resolved_by} if row.resolved_by else None
    after = {"label": value[0], "reason": value[1], "resolved_by": by}
    _resolve(connection, sample, after)
    _note(connection, "resolve", sample, by, source, before=before, after=after)
    return True


def standing(connection: Connection, annotator: str, limit: int) -> list[Row[Any]]:
    """The annotator's actions on the page that were not taken back, latest first: what undo goes through."""
    later = events.alias()
    return list(
        connection.execute(
            select(events)
            .where(events.c.annotator == annotator, events.c.source == PAGE)
            .where(events.c.action.in_(["label", "skip", "resolve"]))
            .where(~exists().where(later.c.undoes == events.c.number))
            .order_by(events.c.number.desc())
            .limit(limit)
        )
    )


def take_back(connection: Connection, annotator: str) -> str | None:
    """Undo the latest action of `annotator` on the page that still stands; returns its sample, or None."""
    event = next(iter(standing(connection, annotator, 1)), None)
    if event is None:
        return None
    if event.action == "resolve":
        row = sample_row(connection, event.sample)
        if {"label": row.label, "reason": row.reason, "resolved_by": row.resolved_by} != event.after:
            raise UserError(
                f"{row.resolved_by} settled {event.sample!r} anew since; ask for another resolution instead"
            )
        _resolve(connection, event.sample, event.before)
    else:
        _replace(connection, event.sample, annotator, Answer(**event.before) if event.before else None)
    _note(
        connection, "undo", event.sample, annotator, PAGE, before=event.after, after=event.before, undoes=event.number
    )
    return str(event.sample)


def answer_of(connection: Connection, sample: str, annotator: str) -> Answer | None:
    row = connection.execute(
        select(answers).where(answers.c.sample == sample, answers.c.annotator == annotator)
    ).first()
    return None if row is None else Answer(row.annotator, row.label, row.reason, row.seconds, row.at)


def sample_row(connection: Connection, sample: str) -> Row[Any]:
    row = connection.execute(select(samples).where(samples.c.id == sample)).first()
    if row is None:
        raise UserError(f"sample {sample!r} was not asked at this site; answer the ones that were")
    return row


def _replace(connection: Connection, sample: str, annotator: str, answer: Answer | None) -> None:
    """Set or remove the annotator's answer, and settle the sample by what all answers say together."""
    connection.execute(delete(answers).where(answers.c.sample == sample, answers.c.annotator == annotator))
    if answer is not None:
        connection.execute(insert(answers).values(sample=sample, **asdict(answer)))
    _settle(connection, sample)


def _resolve(connection: Connection, sample: str, to: dict[str, Any] | None) -> None:
    connection.execute(update(samples).where(samples.c.id == sample).values(**(to or {"resolved_by": None})))
    _settle(connection, sample)


def _settle(connection: Connection, sample: str) -> None:
    """A resolution stands; else answers that name one class, or none, settle a sample; others are a dispute."""
    row = sample_row(connection, sample)
    said = connection.execute(
        select(answers.c.label, answers.c.reason).where(answers.c.sample == sample).order_by(answers.c.at)
    ).all()
    values = [(row.label, row.reason)] if row.resolved_by is not None else [(each.label, each.reason) for each in said]
    label = reason = None
    if not values:
        state = "open"
    elif len({label for label, _ in values}) > 1:
        state = "disputed"
    else:
        label, reason = values[0]
        state = "labelled" if label is not None else "skipped"
    connection.execute(
        update(samples).where(samples.c.id == sample).values(state=state, label=label, reason=reason, answers=len(said))
    )


def _note(
    connection: Connection,
    action: str,
    sample: str,
    annotator: str,
    source: str,
    *,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    undoes: int | None = None,
) -> None:
    state = sample_row(connection, sample).state
    connection.execute(
        insert(events).values(
            at=now(),
            annotator=annotator,
            action=action,
            sample=sample,
            source=source,
            before=before,
            after=after,
            state=state,
            undoes=undoes,
        )
    )


def last_event(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.max(events.c.number), 0))).scalar_one())


def _plain(answer: Answer | None) -> dict[str, Any] | None:
    return None if answer is None else asdict(answer)
