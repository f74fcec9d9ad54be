"""The tables of a site's label store, and how its SQLite file is opened, locked and read without losing anything."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
)
from sqlalchemy.exc import DatabaseError

from cofal.errors import CofalError, EnvironmentFault, UserError
from cofal.files import atomic, write_fault

FILE = "labels.sqlite"
VERSION = 1  # of the tables, kept in the file as PRAGMA user_version
_PATIENCE = 30.0  # seconds that a write waits for the other processes of the site

_metadata = MetaData()

# Every sample that was ever asked, with what is settled of it. `draw` in [0, 1) decides whether the overlap share
# asks for a second opinion; `answers` counts the rows of the table of that name.
samples = Table(
    "samples",
    _metadata,
    Column("id", String, primary_key=True),
    Column("draw", Float, nullable=False),
    Column("state", String, nullable=False, default="open"),  # open | labelled | skipped | disputed
    Column("label", String),
    Column("reason", String),
    Column("answers", Integer, nullable=False, default=0),
    Column("resolved_by", String),
)

# Who asked for what. A withdrawn question keeps its row: an answer on its way is still welcome.
queries = Table(
    "queries",
    _metadata,
    Column("track", String, primary_key=True),
    Column("sample", String, primary_key=True),
    Column("rank", Integer, nullable=False),
    Column("selection", String, nullable=False),
    Column("why", JSON, nullable=False),
    Column("asked_at", String, nullable=False),
    Column("withdrawn_at", String),
    Index("queries_by_sample", "sample"),
)

# One answer per annotator and sample: a class, or the reason of a skip.
answers = Table(
    "answers",
    _metadata,
    Column("sample", String, primary_key=True),
    Column("annotator", String, primary_key=True),
    Column("label", String),
    Column("reason", String),
    Column("seconds", Float),
    Column("at", String, nullable=False),
)

# Which image is in front of whom, until when (seconds since 1970).
leases = Table(
    "leases",
    _metadata,
    Column("sample", String, primary_key=True),
    Column("annotator", String, nullable=False),
    Column("expires", Float, nullable=False),
)

# The audit trail: never changed, never shortened (two triggers see to it). `before` is what the action replaced,
# `state` the sample's state after it.
events = Table(
    "events",
    _metadata,
    Column("number", Integer, primary_key=True),
    Column("at", String, nullable=False),
    Column("annotator", String, nullable=False),
    Column("action", String, nullable=False),  # asked | withdrawn | label | skip | resolve | undo
    Column("sample", String, nullable=False),
    Column("source", String, nullable=False),
    Column("before", JSON),
    Column("after", JSON),
    Column("state", String, nullable=False),
    Column("undoes", Integer),
    Index("events_by_sample", "sample", "number"),
    Index("events_by_annotator", "annotator", "number"),
    Index("events_by_undone", "undoes"),
    sqlite_autoincrement=True,
)

settings = Table("settings", _metadata, Column("key", String, primary_key=True), Column("value", JSON, nullable=False))

_GUARDS = [
    f"CREATE TRIGGER events_no_{verb} BEFORE {verb} ON events BEGIN SELECT RAISE(ABORT, 'the audit trail is kept'); END"
    for verb in ("UPDATE", "DELETE")
]


class Database:
    """One SQLite file in WAL mode, for any number of threads and processes: writers take turns, readers never wait."""

    def __init__(self, path: Path):
        self.path = path
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # labels concern nobody else on the machine
        except OSError as error:
            raise write_fault(path, error) from error
        self._engine = _engine(path)
        self._process = os.getpid()
        with self._told():
            self._use_wal()
        with self.writing() as connection:
            version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
            if version > VERSION:
                raise UserError(f"{path} was written by a newer cofal (tables {version}); update cofal at this site")
            if version < VERSION:
                _metadata.create_all(connection, checkfirst=False)
                for guard in _GUARDS:
                    connection.exec_driver_sql(guard)
                connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one moment of the store."""
        with self._told(), self._own().begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that holds the write lock from its start: what it reads cannot change before it writes."""
        with self._told(), self._own().execution_options(write=True).begin() as connection:
            yield connection

    def backup(self, out: Path) -> None:
        """One moment of the store as one file, while others go on writing."""
        with atomic(out) as temporary, self._told():
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            connection = sqlite3.connect(self.path, timeout=_PATIENCE)
            try:
                connection.execute("VACUUM INTO ?", (str(temporary),))
            finally:
                connection.close()

    def close(self) -> None:
        self._engine.dispose()

    def _own(self) -> Engine:
        if os.getpid() != self._process:  # SQLite's connections must not be used by a child of the process
            self._engine.dispose(close=False)
            self._process = os.getpid()
        return self._engine

    def _use_wal(self) -> None:
        """Turn WAL on. SQLite does not wait for this lock by itself when several processes open a new file at once."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                connection = sqlite3.connect(self.path, timeout=_PATIENCE)
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                finally:
                    connection.close()
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's failures as one line that names the file."""
        try:
            yield
        except (DatabaseError, sqlite3.DatabaseError) as error:
            raise _fault(self.path, str(getattr(error, "orig", error))) from error


def _engine(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": _PATIENCE})

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver guesses
        connection.execute("PRAGMA synchronous = FULL")  # what was answered survives a power cut, not only a kill

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        write = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _fault(path: Path, said: str) -> CofalError:
    if "not a database" in said or "malformed" in said:
        return UserError(f"{path} is damaged ({said}); put a backup in its place")
    if "readonly" in said or "unable to open" in said:
        return UserError(f"cannot write {path}: {said}; check who owns it")
    if "locked" in said:
        return EnvironmentFault(
            f"{path} was in use by another process for {_PATIENCE:g} s; end that one and do the same again"
        )
    return EnvironmentFault(f"cannot use {path}: {said}; free some space or check the disk, and do the same again")
