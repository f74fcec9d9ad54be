"""What is read off the store for people: how far the labelling is, who did how much, what is out of the pool."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from statistics import median

from sqlalchemy import ColumnElement, Connection, and_, func, select

from cofal.labeling.answering import PAGE
from cofal.labeling.records import Progress, Work
from cofal.labeling.schema import answers, events, queries, samples


def awaits_second(overlap: float) -> ColumnElement[bool]:
    """Does a labelled sample wait for a second opinion, by the overlap share?"""
    return and_(
        samples.c.state == "labelled",
        samples.c.answers == 1,
        samples.c.resolved_by.is_(None),
        samples.c.draw < overlap,
    )


def skipped_as_of(connection: Connection, number: int) -> set[str]:
    """Ids of the samples that were skipped when line `number` of the trail was the last one."""
    latest = (
        select(events.c.sample, func.max(events.c.number).label("number"))
        .where(events.c.number <= number)
        .group_by(events.c.sample)
        .subquery()
    )
    skipped = (
        select(events.c.sample).join(latest, latest.c.number == events.c.number).where(events.c.state == "skipped")
    )
    return set(connection.execute(skipped).scalars())


def progress(connection: Connection, track: str | None, overlap: float, active_since: float) -> Progress:
    """active_since: seconds since 1970; whoever labelled by hand later than that shares the work that is left."""
    asked = select(queries.c.sample).where(queries.c.withdrawn_at.is_(None)).distinct()
    if track is not None:
        asked = asked.where(queries.c.track == track)
    counts: dict[str, int] = dict(
        connection.execute(
            select(samples.c.state, func.count()).where(samples.c.id.in_(asked)).group_by(samples.c.state)
        )
        .tuples()
        .all()
    )
    second = connection.execute(
        select(func.count()).select_from(samples).where(samples.c.id.in_(asked), awaits_second(overlap))
    ).scalar_one()
    columns = (answers.c.annotator, answers.c.label.is_not(None), answers.c.seconds)
    given = connection.execute(select(*columns).where(answers.c.sample.in_(asked))).tuples().all()
    by: dict[str, list[tuple[bool, float | None]]] = {}
    for name, labelled, seconds in given:
        by.setdefault(name, []).append((labelled, seconds))
    people = {
        name: Work(
            sum(labelled for labelled, _ in work),
            sum(not labelled for labelled, _ in work),
            _median(seconds for _, seconds in work),
        )
        for name, work in sorted(by.items())
    }
    typical = _median(seconds for _, _, seconds in given)
    since = datetime.fromtimestamp(active_since, UTC).isoformat(timespec="milliseconds")
    at_work = select(func.count(events.c.annotator.distinct())).where(
        events.c.source == PAGE,  # the author of imported answers is not here
        events.c.at >= since,
        events.c.sample.in_(asked),
    )
    active = max(1, connection.execute(at_work).scalar_one())
    waiting = counts.get("open", 0) + second
    return Progress(
        asked=sum(counts.values()),
        open=counts.get("open", 0),
        labelled=counts.get("labelled", 0),
        skipped=counts.get("skipped", 0),
        disputed=counts.get("disputed", 0),
        second_opinions=second,
        annotators=people,
        median_seconds=typical,
        seconds_left=None if typical is None else waiting * typical / active,
    )


def shared_labels(connection: Connection) -> list[dict[str, str]]:
    """For each sample with several answers, class by annotator; skips are left out."""
    chosen = (
        select(answers.c.sample, answers.c.annotator, answers.c.label)
        .join(samples, samples.c.id == answers.c.sample)
        .where(samples.c.answers > 1, answers.c.label.is_not(None))
    )
    found: dict[str, dict[str, str]] = {}
    for sample, annotator, label in connection.execute(chosen).tuples():
        found.setdefault(sample, {})[annotator] = label
    return list(found.values())


def _median(seconds: Iterable[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return float(median(known)) if known else None
