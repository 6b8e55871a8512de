"""Helpers for tests of copying: databases of the suite's server as source and target, and copies in the test's process."""

import contextlib
import itertools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.model.params import PostgresCopyParams, parse_params
from lakefork.quality.suites import expectations_directory
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.storage import StorageOptions
from lakefork.transfer.postgres_copy.commands import abandon, compare_now
from lakefork.transfer.postgres_copy.lake_run import LakeDestination
from lakefork.transfer.postgres_copy.postgres_run import PostgresDestination
from lakefork.transfer.postgres_copy.run import run_copy
from lakefork.upkeep.flush.audit import FlushAudit
from support.flush_lake import Told
from support.sql_lake import SqlLake

_numbers = itertools.count()


@dataclass
class CopyLab:
    """source and target: DSNs of two empty databases; dsn: that of the catalog."""

    postgres: str
    dsn: str
    source: str
    target: str
    settings: Settings
    lines: list[str] = field(default_factory=list)

    def sql(self, dsn: str, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            found = connection.execute(query, parameters or None)  # type: ignore[arg-type, call-overload, unused-ignore]
            return found.fetchall() if found.description else []

    def on_source(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.sql(self.source, query, *parameters)

    def on_target(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.sql(self.target, query, *parameters)

    def catalog(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.sql(self.dsn, query, *parameters)

    @contextlib.contextmanager
    def context(self) -> Iterator[Told]:
        run_id = f"test_{uuid.uuid4().hex[:8]}"
        run = JobRun(f"postgres_copy/{run_id}/{uuid.uuid4().hex[:8]}", "postgres_copy", run_id, "cli", "node")
        with connect(self.dsn) as connection:
            context = Told(run, self.settings, self.dsn, connection, Leases(run.job_id, 30))
            context.lines = self.lines = []
            try:
                yield context
            finally:
                if not context.connection.closed:
                    context.leases.release(context.connection)
                    context.connection.close()

    def copy(self, **params: Any) -> dict[str, Any]:
        """Into the other Postgres."""
        given = {"source": "src", "target": "dst", **params}
        with self.context() as context:
            found = parse_params("postgres_copy", json.dumps(given))
            assert isinstance(found, PostgresCopyParams) and found.target
            return run_copy(context, found, PostgresDestination(found.target))

    def into_lake(self, audit: Any = None, **params: Any) -> dict[str, Any]:
        """Into catalog main."""
        given = {"source": "src", "into": "main", **params}
        with self.context() as context:
            found = parse_params("postgres_copy", json.dumps(given))
            assert isinstance(found, PostgresCopyParams) and found.into
            return run_copy(
                context,
                found,
                LakeDestination(
                    found.into, audit or FlushAudit(context.storage, expectations_directory(self.settings))
                ),
            )

    @contextlib.contextmanager
    def lake(self) -> Iterator[SqlLake]:
        with Engine(self.settings, self.dsn) as engine, connect(self.dsn) as connection:
            yield SqlLake(engine, self.dsn, find_catalog(connection, "main"))

    def compare(self, copy_id: str) -> list[str]:
        return compare_now(self.dsn, copy_id)

    def abandon(self, copy_id: str) -> None:
        """And waits until the snapshot is let go."""
        abandon(self.dsn, copy_id, StorageOptions())
        until(
            lambda: (
                self.catalog("SELECT count(*) FROM system.copies WHERE copy_id = %s AND snapshot_held", copy_id)
                == [(0,)]
            )
        )

    @contextlib.contextmanager
    def login(self, rights: str) -> Iterator[str]:
        """A role with nothing but these rights on the source; its DSN."""
        name = f"copy_reader_{next(_numbers)}"
        self.on_source(f"CREATE ROLE {name} LOGIN PASSWORD 'reads'; GRANT {rights} TO {name}")
        try:
            yield f"postgresql://{name}:reads@{self.source.rpartition('@')[2]}"
        finally:
            self.on_target(f"DROP OWNED BY {name}")
            self.on_source(
                f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {name}; DROP OWNED BY {name}; DROP ROLE {name}"
            )

    @contextlib.contextmanager
    def writing(self, script: str) -> Iterator[Callable[[], int]]:
        """Runs a script on the source again and again; how often, so far."""
        over, rounds = threading.Event(), [0]

        def write() -> None:
            with psycopg.connect(self.source, autocommit=True) as connection:
                while not over.is_set():
                    connection.execute(script.encode())
                    rounds[0] += 1

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield lambda: rounds[0]
        finally:
            over.set()
            thread.join()

    def end_holder(self, copy_id: str) -> None:
        """Kills the process whose transaction holds the snapshot, by its connection's process id on the server."""
        self.sql(
            self.source,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%%' "
            "AND pid <> pg_backend_pid() AND %s <> ''",
            copy_id,
        )


def until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


@contextlib.contextmanager
def fresh_database(postgres: str, options: str = "") -> Iterator[str]:
    name = f"copy_{next(_numbers)}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY FILE_COPY {options}".encode())
        yield f"{postgres.rpartition('/')[0]}/{name}"
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
