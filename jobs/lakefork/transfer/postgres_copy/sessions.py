"""Sessions with the source and the target of a copy: settings under which values come out and go in exactly."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.named_connections import ANY_BYTES, connect_to, find_dsn
from lakefork.database_errors import all_domain_errors, said
from lakefork.errors import DatabaseError, InvalidInputError, LakeforkError, SetupError, SnapshotLostError
from lakefork.queries import load

SQL = load(__package__)
OLDEST_SOURCE = 13
Session = psycopg.Connection[dict[str, Any]]
BOTH = (
    "SET search_path = ''; SET statement_timeout = 0; SET lock_timeout = 0; "
    "SET idle_in_transaction_session_timeout = 0; "
    "SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC'; SET extra_float_digits = 3; "
    "SET bytea_output = 'hex'; SET xmloption = 'content'"
)
# Rows that a policy would hide are an error: a copy is complete or refused.
SOURCE = f"{BOTH}; SET row_security = off; SET synchronize_seqscans = off"
TARGET = (
    f"{BOTH}; SET synchronous_commit = off; SET maintenance_work_mem = '256MB'; SET client_min_messages = 'warning'"
)

LOST_SNAPSHOT = (
    "the snapshot of the copy is lost, because the process that held it ended or the source restarted: "
    "resume with not_consistent takes a new one"
)


@dataclass(frozen=True)
class Identity:
    """Which database a connection leads to. Two connections with the same identity are the same copy's source."""

    system_identifier: str
    database: str
    role: str
    version: int
    encoding: str
    is_standby: bool

    def __str__(self) -> str:
        return f"{self.system_identifier}/{self.database}/{self.role}"

    @property
    def has_no_encoding(self) -> bool:
        return self.encoding == "SQL_ASCII"

    @property
    def is_same_database(self) -> tuple[str, str]:
        return self.system_identifier, self.database


@dataclass(frozen=True)
class Endpoint:
    """A database by the name of its connection; the DSN goes with tasks to executors, and into no log."""

    name: str
    dsn: str
    encoding: str

    def __repr__(self) -> str:
        return f"Endpoint({self.name})"

    def open_source(self, snapshot: str | None) -> Session:
        """Reads, from the moment of the snapshot on."""
        session = self._open(SOURCE)
        with all_domain_errors():
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if snapshot is not None:
            join_snapshot(session, snapshot)
        return session

    def open_target(self) -> Session:
        return self._open(TARGET)

    def _open(self, settings: str) -> Session:
        session = connect_to(self.name, self.dsn, autocommit=True, row_factory=dict_row)
        with all_domain_errors():
            session.execute(f"{settings}; SET client_encoding = '{self.encoding}'")
        return session


def join_snapshot(session: Session, snapshot: str) -> None:
    try:
        session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
    except (
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.UndefinedObject,
        psycopg.errors.ObjectNotInPrerequisiteState,
    ):
        session.close()
        raise SnapshotLostError(LOST_SNAPSHOT) from None


def find_endpoint(name: str) -> tuple[Endpoint, Identity]:
    """The database of a connection, and which one that is."""
    dsn = find_dsn(name)
    with connect_to(name, dsn, autocommit=True, row_factory=dict_row) as session, source_errors(name):
        try:
            row = session.execute(SQL["identity"]).fetchone()
        except psycopg.errors.InsufficientPrivilege:
            row = session.execute(SQL["identity_without_right"]).fetchone()
    identity = Identity(**(row or {}))
    if identity.version < OLDEST_SOURCE * 10_000:
        raise SetupError(f"{name!r} is Postgres {identity.version // 10_000}: copying needs {OLDEST_SOURCE} or newer")
    return Endpoint(name, dsn, ANY_BYTES if identity.has_no_encoding else identity.encoding), identity


def target_endpoint(source: Endpoint, source_identity: Identity, target: Endpoint, identity: Identity) -> Endpoint:
    """A target that is told to expect what the source sends; bytes without an encoding must be valid in its own."""
    if source_identity.has_no_encoding and not identity.has_no_encoding:
        return target
    return Endpoint(target.name, target.dsn, source.encoding)


@contextmanager
def source_errors(name: str) -> Iterator[None]:
    """What a foreign database reports, in its own words: they are about what its owner made."""
    try:
        yield
    except psycopg.Error as error:
        raise foreign_error(name, error) from error


def foreign_error(name: str, error: psycopg.Error, what: str = "") -> LakeforkError:
    about = f"{name!r}{f', {what}' if what else ''}"
    if error.sqlstate is None or error.sqlstate[:2] in ("08", "57"):
        return DatabaseError(f"the connection to {about} broke: resume the copy")
    if error.sqlstate == "42501":
        return SetupError(f"the role of connection {about} lacks a right: {said(error)}")
    if error.sqlstate == "53200":
        return SetupError(f"{about} has no room for more locks: raise its max_locks_per_transaction ({said(error)})")
    context = error.diag.context or ""
    where = f" ({context.splitlines()[0]})" if context.startswith("COPY") else ""
    return InvalidInputError(f"{about}: {said(error)}{where}")
