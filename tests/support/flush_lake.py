"""Helpers for tests of flush: runs it in the test's process on the suite's Spark, and reads what it left without our reader."""

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from lakefork.catalog.connection import connect
from lakefork.catalog.definitions import find_definitions
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.model.params import FlushParams, SnapshotDedupParams
from lakefork.model.tables import TableRef
from lakefork.settings import Settings
from lakefork.spark.job import JobContext
from lakefork.upkeep.dedup.run import run_dedup
from lakefork.upkeep.flush.audit import FlushAudit
from lakefork.upkeep.flush.run import run_flush
from support.lake import rows_of
from support.sql_lake import SqlLake


class Told(JobContext):
    """A job's context that keeps what the job said."""

    lines: list[str]

    def progress(self, line: str) -> None:
        self.lines.append(line)


@dataclass
class FlushLake:
    lake: SqlLake
    settings: Settings
    expectations: Path
    lines: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def context(
        self, run_id: str | None = None, settings: Settings | None = None, job: str = "flush"
    ) -> Iterator[JobContext]:
        run_id = run_id or f"test_{uuid.uuid4().hex[:8]}"
        run = JobRun(f"{job}/{run_id}/{uuid.uuid4().hex[:8]}", job, run_id, "cli", "node")
        with connect(self.lake.dsn) as connection:
            context = Told(run, settings or self.settings, self.lake.dsn, connection, Leases(run.job_id, 60))
            context.lines = self.lines = []
            try:
                yield context
            finally:
                if not context.connection.closed:
                    context.leases.release(context.connection)
                    context.connection.close()

    def flush(self, run_id: str | None = None, settings: Settings | None = None, **params: Any) -> dict[str, Any]:
        """Everything that waits, unless params say otherwise."""
        with self.context(run_id, settings) as context:
            audit = FlushAudit(context.storage, self.expectations)
            return run_flush(context, FlushParams(**{"force": True, **params}), audit)

    def dedup(self, run_id: str | None = None, settings: Settings | None = None, **params: Any) -> dict[str, Any]:
        """Merges whatever can be merged, unless params say otherwise."""
        with self.context(run_id, settings, "snapshot_dedup") as context:
            return run_dedup(context, SnapshotDedupParams(**{"min_batches": 2, **params}))

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with connect(self.lake.dsn) as connection:
            return rows_of(connection, query, *parameters)

    def paths(self, table: str) -> list[str]:
        """The batches that the catalog has of a table, in order."""
        namespace, name = table.split(".")
        found = self.sql(
            "SELECT f.path FROM system.tables t CROSS JOIN LATERAL "
            "lakefork.table_files(t.catalog_id, t.table_id, NULL, '{}') f "
            "WHERE t.catalog_name = %s AND t.namespace = %s AND t.table_name = %s ORDER BY f.data_file_id",
            self.lake.catalog.name, namespace, name,
        )  # fmt: skip
        return [path for (path,) in found]

    def files_on_disk(self) -> list[str]:
        return sorted(str(path) for path in Path(self.lake.catalog.data_path).rglob("*.parquet"))

    def hot_rows(self) -> int:
        names = self.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'hot'")
        return sum(int(self.sql(f"SELECT count(*) FROM hot.{name}")[0][0]) for (name,) in names)

    def waiting(self) -> dict[str, int]:
        """Versions that wait, by user."""
        self.sql("SELECT lakefork.fold_counts(NULL)")
        return dict(self.sql("SELECT user_id, versions FROM lakefork.hot_count"))

    def manifest(self, directory: str) -> Any:
        return json.loads((Path(directory) / "manifest.json").read_text())

    def newest_as_dicts(self, table: str, key: str = "id") -> list[dict[str, Any]]:
        """Live newest rows of all batches by pyarrow and plain Python."""
        newest: dict[tuple[Any, Any], dict[str, Any]] = {}
        for path in self.paths(table):
            for row in pq.read_table(path).to_pylist():
                place = row.get("_user_id"), row[key]
                if place not in newest or newest[place]["_seq"] < row["_seq"]:
                    newest[place] = row
        return [row for row in newest.values() if not row["_deleted"]]

    def newest_in_files(self, table: str, key: str = "id") -> list[tuple[Any, ...]]:
        """Live newest rows of all batches by DuckDB alone, without the system columns."""
        paths = self.paths(table)
        if not paths:
            return []
        owner = "_user_id, " if "_user_id" in pq.read_schema(paths[0]).names else ""
        rows: list[tuple[Any, ...]] = duckdb.sql(
            f"SELECT * EXCLUDE (_seq, _deleted) FROM (FROM read_parquet({paths!r}, union_by_name = true) "
            f"QUALIFY row_number() OVER (PARTITION BY {owner}{key} ORDER BY _seq DESC) = 1) WHERE NOT _deleted "
            f"ORDER BY {owner}{key}"
        ).fetchall()
        return rows

    def newest_by_field_ids(self, table: str, key: str = "id") -> list[dict[str, Any]]:
        """The same with the columns of now, which DuckDB finds in each file by their ids."""
        paths = self.paths(table)
        if not paths:
            return []
        with connect(self.lake.dsn) as connection:
            namespace, name = table.split(".")
            found = connection.execute(
                "SELECT catalog_id, table_id FROM lakefork.live_table "
                "WHERE catalog_name = %s AND namespace = %s AND table_name = %s",
                (self.lake.catalog.name, namespace, name),
            ).fetchone()
            assert found is not None
            ref = TableRef.of(found)
            definition = find_definitions(connection, [ref])[ref].definition
        columns = ", ".join(
            f"{one.column_id}: {{name: '{one.name}', type: '{one.type.duckdb}', "
            f"default_value: {'NULL' if one.initial_default is None else one.initial_default}}}"
            for one in definition.columns + definition.system_columns
        )
        owner = "_user_id, " if definition.per_user else ""
        found = duckdb.sql(
            f"SELECT * EXCLUDE (_seq, _deleted) FROM (FROM read_parquet({paths!r}, schema = MAP {{{columns}}}) "
            f"QUALIFY row_number() OVER (PARTITION BY {owner}{key} ORDER BY _seq DESC) = 1) WHERE NOT _deleted"
        )
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


USERS = ("ada", "bob")


@dataclass
class Filled:
    flush_lake: FlushLake

    def rows(self) -> list[tuple[object, ...]]:
        """What readers see of both tables."""
        lake = self.flush_lake.lake
        of_users = [
            (user, *row) for user in USERS for row in lake.rows("SELECT id, v FROM app.mine ORDER BY id", user=user)
        ]
        return of_users + [("", *row) for row in lake.rows("SELECT id, v FROM app.ours ORDER BY id")]

    def in_files(self) -> list[tuple[object, ...]]:
        """The same by DuckDB from the published files alone."""
        of_users = [(user, key, value) for key, value, user in self.flush_lake.newest_in_files("app.mine")]
        return sorted(of_users) + [("", *row) for row in self.flush_lake.newest_in_files("app.ours")]

    def write(self, round_number: int) -> None:
        """Inserts, updates, deletes: each round has new rows and changes old ones."""
        lake = self.flush_lake.lake
        first = 10 * round_number
        for user in USERS:
            values = ", ".join(f"({first + n}, '{user} {n}')" for n in range(5))
            lake.run(f"INSERT INTO app.mine VALUES {values}", user=user)
            lake.run(
                f"UPDATE app.mine SET v = v || '+' WHERE id % 2 = 0; DELETE FROM app.mine WHERE id = {first + 1}",
                user=user,
            )
        values = ", ".join(f"({first + n}, 'ours {n}')" for n in range(5))
        lake.run(f"INSERT INTO app.ours VALUES {values}; UPDATE app.ours SET v = v || '+' WHERE id % 2 = 0")

    def check_nothing_lost_or_left(self, expected: list[tuple[object, ...]]) -> None:
        """Exact rows, every file known to the catalog and no other, nothing waits, manifests are up to date."""
        flush_lake = self.flush_lake
        assert self.rows() == expected
        assert self.in_files() == expected
        published = flush_lake.paths("app.mine") + flush_lake.paths("app.ours")
        assert flush_lake.files_on_disk() == sorted(published)
        assert len(set(published)) == len(published)
        assert flush_lake.waiting() == {}
        assert flush_lake.sql("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
        assert flush_lake.sql("SELECT count(*) FROM lakefork.manifest_pending") == [(0,)]
        named = [
            f"{directory}/{batch['file']}"
            for directory in {path.rpartition("/")[0] for path in published}
            for batch in flush_lake.manifest(directory)["batches"]
        ]
        assert sorted(named) == sorted(published)
