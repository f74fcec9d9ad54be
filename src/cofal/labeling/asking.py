"""Questions inside one transaction of the store: setting the list of a track, finding them, handing them out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, exists, insert, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from cofal.errors import UserError
from cofal.labeling.answering import now
from cofal.labeling.measuring import awaits_second
from cofal.labeling.records import Query
from cofal.labeling.schema import answers, events, leases, queries, samples

LEASE = 600.0  # seconds for which an image in front of an annotator is not given to another
SERVER = "server"  # who asks and withdraws, in the audit trail
_AT_ONCE = 500  # rows per statement


def set_list(
    connection: Connection, track: str, ids: Sequence[str], why: Mapping[str, Mapping[str, Any]], selection: str
) -> None:
    """Make `ids` the questions of `track`, in rank order; what is no longer among them is withdrawn."""
    moment = now()
    rows = connection.execute(select(queries).where(queries.c.track == track)).all()
    known = {row.sample: row for row in rows}
    listed = {row.sample for row in rows if row.withdrawn_at is None}
    rank = {sample: place for place, sample in enumerate(ids)}
    new = [sample for sample in ids if sample not in listed]
    gone = sorted(listed - set(ids))
    selection = selection or str(1 + len({row.selection for row in rows}))
    first = [{"id": sample, "draw": _draw(sample), "state": "open", "answers": 0} for sample in new]
    _many(connection, upsert(samples).on_conflict_do_nothing(), first)
    asked = {"track": track, "selection": selection, "asked_at": moment}
    fresh = [
        {"sample": sample, "rank": rank[sample], "why": dict(why.get(sample, {})), **asked}
        for sample in new
        if sample not in known
    ]
    _many(connection, insert(queries), fresh)
    for sample in ids:
        if sample in known and (known[sample].rank != rank[sample] or sample not in listed):
            _change(connection, track, sample, rank=rank[sample], withdrawn_at=None)
    for sample in gone:
        _change(connection, track, sample, withdrawn_at=moment)
    state = dict(connection.execute(select(samples.c.id, samples.c.state)).tuples().all())
    noted = {"at": moment, "annotator": SERVER, "source": f"{track} {selection}"}
    _many(
        connection,
        insert(events),
        [
            {"action": action, "sample": sample, "state": state[sample], **noted}
            for action, some in (("asked", new), ("withdrawn", gone))
            for sample in some
        ],
    )


def questions(moment: float, track: str | None, *, withdrawn: bool = False) -> Select[Any]:
    """Questions with the state of their samples and who holds them at `moment` (seconds since 1970)."""
    held = and_(leases.c.sample == queries.c.sample, leases.c.expires > moment)
    chosen = select(
        *(queries.c[name] for name in ("sample", "track", "rank", "selection", "why", "asked_at")),
        *(samples.c[name] for name in ("state", "label", "reason", "resolved_by")),
        leases.c.annotator.label("held_by"),
    ).select_from(queries.join(samples, samples.c.id == queries.c.sample).outerjoin(leases, held))
    if not withdrawn:
        chosen = chosen.where(queries.c.withdrawn_at.is_(None))
    return chosen if track is None else chosen.where(queries.c.track == track)


def filtered(chosen: Select[Any], state: str, label: str, annotator: str) -> Select[Any]:
    """`questions` with that state, that final class, an answer by that annotator; an empty filter fits all."""
    if state:
        chosen = chosen.where(samples.c.state == state)
    if label:
        chosen = chosen.where(samples.c.label == label)
    if annotator:
        chosen = chosen.where(exists().where(answers.c.sample == queries.c.sample, answers.c.annotator == annotator))
    return chosen


def second_opinion_of(annotator: str, overlap: float) -> ColumnElement[bool]:
    """Does a sample wait for a second opinion, and has `annotator` given none yet?"""
    answered = exists().where(answers.c.sample == samples.c.id, answers.c.annotator == annotator)
    return and_(awaits_second(overlap), ~answered)


def question(connection: Connection, sample: str, moment: float) -> Query:
    """The question of one sample, also a withdrawn one; of several tracks, the one that asks first."""
    asked = questions(moment, None, withdrawn=True).where(queries.c.sample == sample)
    row = connection.execute(asked.order_by(queries.c.withdrawn_at.is_not(None), queries.c.rank)).first()
    if row is None:
        raise UserError(f"sample {sample!r} was not asked at this site; answer the ones that were")
    return as_query(row)


def hand_out(
    connection: Connection, annotator: str, count: int, track: str | None, overlap: float, moment: float
) -> list[Query]:
    """Up to `count` questions for `annotator`, now leased to him: his own first, then open ones by rank."""
    mine: ColumnElement[bool] = and_(leases.c.annotator == annotator, leases.c.expires > moment)
    chosen = (
        questions(moment, track)
        .where(or_(leases.c.sample.is_(None), mine))
        .where(or_(samples.c.state == "open", second_opinion_of(annotator, overlap)))
        .order_by(case((mine, 0), else_=1), queries.c.rank, queries.c.track)
    )
    found: dict[str, Query] = {}
    for row in connection.execute(chosen):
        if len(found) >= count:
            break
        found.setdefault(row.sample, as_query(row, held_by=annotator))  # a sample may be asked in two tracks
    for sample in found:
        lease(connection, sample, annotator, moment)
    return list(found.values())


def lease(connection: Connection, sample: str, annotator: str, moment: float) -> None:
    row = {"annotator": annotator, "expires": moment + LEASE}
    connection.execute(upsert(leases).values(sample=sample, **row).on_conflict_do_update(set_=row))


def as_query(row: Any, **changed: Any) -> Query:
    fields = dict(row._mapping)
    return Query(id=fields.pop("sample"), **{**fields, **changed})


def _change(connection: Connection, track: str, sample: str, **values: Any) -> None:
    connection.execute(update(queries).where(queries.c.track == track, queries.c.sample == sample).values(**values))


def _many(connection: Connection, statement: Any, rows: list[dict[str, Any]]) -> None:
    for begin in range(0, len(rows), _AT_ONCE):
        connection.execute(statement, rows[begin : begin + _AT_ONCE])


def _draw(sample: str) -> float:
    """A number in [0, 1) that is the same for a sample in every process."""
    return int.from_bytes(hashlib.sha256(sample.encode()).digest()[:6], "big") / 2**48
