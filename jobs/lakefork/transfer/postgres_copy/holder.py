"""Keeps the snapshot of a copy, with locks on its tables: a small process that outlives the run that started it.

`python -c "…holder import main; main()"`: reads one JSON object from stdin (HoldRequest), answers with one on stdout
(Held, or {"error": …}), and holds on until the copy is over, or nobody has worked on it for too long.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.connection import connect
from lakefork.catalog.leases import Leases
from lakefork.catalog.named_connections import connect_to, find_dsn
from lakefork.database_errors import DRIVER_ERRORS
from lakefork.errors import ConflictError, LakeforkError, SetupError
from lakefork.transfer.postgres_copy.plan import quote
from lakefork.transfer.postgres_copy.sessions import SOURCE, foreign_error, join_snapshot

BEAT_SECONDS = 2.0
LEASE_SECONDS = 10.0
LOCK_SECONDS = 60
HOLD_SECONDS = 12 * 3600  # without anybody at work; an old snapshot keeps VACUUM of the source from its work
START_SECONDS = 180


@dataclass(frozen=True)
class HoldRequest:
    """tables: as SQL names them. slot: a replication slot to make, whose snapshot is then the one that is held."""

    copy_id: str
    source: str
    tables: list[str]
    slot: str | None = None
    hold_seconds: float = HOLD_SECONDS


@dataclass(frozen=True)
class Held:
    snapshot: str
    lsn: str
    taken_at: str
    slot: str | None


def holder_lease(copy_id: str) -> str:
    return f"copy-holder/{copy_id}"


def start_holder(request: HoldRequest, dsn: str) -> Held:
    """Starts the process, and waits until it has snapshot and locks."""
    environment = {**os.environ, "LAKEFORK_DSN": dsn, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from lakefork.transfer.postgres_copy.holder import main; main()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        start_new_session=True, text=True,
    )  # fmt: skip
    assert process.stdin and process.stdout  # noqa: S101 - they are pipes
    with process.stdin as given:
        given.write(json.dumps(asdict(request)))
    with process.stdout as answers:
        answer = json.loads(answers.readline() or '{"error": "the process that holds the snapshot did not start"}')
    process.wait(timeout=START_SECONDS)  # it leaves a child behind
    if "error" in answer:
        raise SetupError(answer["error"])
    return Held(**answer)


def main() -> None:
    request = HoldRequest(**json.load(sys.stdin))
    try:
        holding = Holding(request)
        held = holding.take()
    except (LakeforkError, *DRIVER_ERRORS) as error:
        said = foreign_error(request.source, error) if isinstance(error, psycopg.Error) else error
        print(json.dumps({"error": str(said)}), flush=True)  # noqa: T201 - the answer
        return
    print(json.dumps(asdict(held)), flush=True)  # noqa: T201
    _leave()
    try:
        holding.keep()
    finally:
        holding.let_go()


def _leave() -> None:
    """Whoever started it may wait for it, and end: a child goes on, and says nothing from now on."""
    if os.fork():
        os._exit(0)  # without closing the connection, which is the child's now
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def drop_slot(session: Any, slot: str) -> None:
    """Drops a slot and its publication, if they exist: a slot that nobody reads keeps WAL for ever."""
    session.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    session.execute(f"DROP PUBLICATION IF EXISTS {quote(slot)}".encode())


class Holding:
    """The transaction with the snapshot and the locks, and the lease that tells others that it is there."""

    def __init__(self, request: HoldRequest) -> None:
        self._request = request
        self._leases = Leases(f"{holder_lease(request.copy_id)}/{os.getpid()}", LEASE_SECONDS)
        self._replication: Any = None

    def take(self) -> Held:
        """Locks first: what is dropped, truncated or rewritten between snapshot and lock would be empty or gone."""
        request = self._request
        self._take_lease()
        self._session = connect_to(request.source, autocommit=True, row_factory=dict_row)
        self._session.execute(f"{SOURCE}; SET lock_timeout = '{LOCK_SECONDS}s'")
        self._session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            for start in range(0, len(request.tables), 1_000):
                names = ", ".join(f"ONLY {name}" for name in request.tables[start : start + 1_000])
                self._session.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE")
        except psycopg.errors.LockNotAvailable:
            raise ConflictError(
                f"a table of {request.source!r} is locked for more than {LOCK_SECONDS} s, as if it is altered: "
                "try again later"
            ) from None
        lsn = None
        if request.slot:
            snapshot, lsn = self._make_slot(request.slot)
            join_snapshot(self._session, snapshot)
        return self._export(lsn)

    def _take_lease(self) -> None:
        """The lease of one before, whose snapshot is lost, runs out."""
        with connect(os.environ["LAKEFORK_DSN"], check_version=False) as catalog:
            for _ in range(int(2 * LEASE_SECONDS)):
                if self._leases.acquire_available(catalog, [holder_lease(self._request.copy_id)]):
                    return
                time.sleep(1)
            self._leases.take(catalog, holder_lease(self._request.copy_id))

    def _export(self, slot_lsn: str | None) -> Held:
        row = self._session.execute(
            "SELECT pg_export_snapshot() AS snapshot, now()::text AS taken_at, "
            "(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END)::text AS lsn"
        ).fetchone()
        assert row is not None  # noqa: S101 - a query without FROM
        return Held(row["snapshot"], slot_lsn or row["lsn"], row["taken_at"], self._request.slot)

    def _make_slot(self, slot: str) -> tuple[str, str]:
        """Returns snapshot and LSN of a new slot; the snapshot lives until the connection's next command.

        The publication comes first: at the slot's first change it must be there.
        """
        name = self._request.source
        with connect_to(name, autocommit=True) as session:
            drop_slot(session, slot)
            tables = ", ".join(f"ONLY {table}" for table in self._request.tables)
            session.execute(f"CREATE PUBLICATION {quote(slot)}{f' FOR TABLE {tables}' if tables else ''}".encode())
        try:
            self._replication = psycopg.connect(find_dsn(name), autocommit=True, replication="database")
        except psycopg.Error as error:
            raise SetupError(f"cannot make a replication slot on {name!r}: {str(error).splitlines()[0]}") from None
        found = self._replication.pgconn.exec_(
            f"CREATE_REPLICATION_SLOT {quote(slot)} LOGICAL pgoutput EXPORT_SNAPSHOT".encode()
        )
        if found.ntuples != 1:
            raise SetupError(
                f"cannot make a replication slot on {name!r}: {found.error_message.decode().splitlines()[0]}"
            )
        return found.get_value(0, 2).decode(), found.get_value(0, 1).decode()

    def keep(self) -> None:
        """Until the copy is over, abandoned, or idle for too long. A catalog that is away is waited for."""
        worked_at = time.monotonic()
        catalog = None
        while time.monotonic() - worked_at < self._request.hold_seconds:
            time.sleep(BEAT_SECONDS)
            try:
                self._session.execute("SELECT 1")
            except psycopg.Error:
                return  # the snapshot went with the connection; workers notice when they join it
            try:
                catalog = catalog or connect(os.environ["LAKEFORK_DSN"], check_version=False)
                is_over, is_worked_on = self._look(catalog)
            except (LakeforkError, psycopg.Error):
                catalog = None
                continue
            if is_over:
                return
            if is_worked_on:
                worked_at = time.monotonic()

    def let_go(self) -> None:
        with (
            contextlib.suppress(LakeforkError, psycopg.Error),
            connect(os.environ["LAKEFORK_DSN"], check_version=False) as catalog,
        ):
            self._leases.release(catalog)

    def _look(self, catalog: Any) -> tuple[bool, bool]:
        self._leases.acquire_available(catalog, [holder_lease(self._request.copy_id)])
        row = catalog.execute(
            "SELECT c.status IN ('completed', 'abandoned') AS is_over, "
            "EXISTS (SELECT FROM lakefork.lease l WHERE l.name = 'copy/' || c.copy_id "
            "AND l.expires_at >= clock_timestamp()) AS is_worked_on FROM lakefork.copy c WHERE c.copy_id = %s",
            (self._request.copy_id,),
        ).fetchone()
        return (row["is_over"], row["is_worked_on"]) if row else (True, False)
