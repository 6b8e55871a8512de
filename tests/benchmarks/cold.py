"""The cost of reading and merging batches, compared with DuckDB on the same files in the same run."""

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database, benchmark_spark

from lakefork.catalog.catalogs import create_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import connect
from lakefork.catalog.jobs import JobRun
from lakefork.catalog.leases import Leases
from lakefork.cold.batch import write_batch
from lakefork.cold.batch_files import batch_layout
from lakefork.cold.layout import below_table
from lakefork.model.column_types import column_type
from lakefork.model.params import SnapshotDedupParams
from lakefork.model.predicates import Predicate, duckdb_literal
from lakefork.model.tables import Column, TableDefinition
from lakefork.read.pruning import Batch, ColumnBounds, plan_scan
from lakefork.settings import Settings
from lakefork.spark.job import JobContext, _Heartbeat
from lakefork.sql.engine import Engine
from lakefork.sql.parse.statements import TableName
from lakefork.sql.session import Role, Session
from lakefork.sql.workers.messages import Probe
from lakefork.storage import StorageOptions
from lakefork.upkeep.dedup.run import run_dedup

AREA = "cold"
ROUNDS = 9
ADMIN = Session("main", None, Role.ADMIN)
QUERIES = {
    "count": "SELECT count(*) FROM {t}",
    "category": "SELECT * FROM {t} WHERE category = 'cat_42'",
    "top 10": "SELECT category, sum(amount) AS s FROM {t} GROUP BY category ORDER BY s DESC, category LIMIT 10",
    "one key": "SELECT * FROM {t} WHERE id = 99999",
    "sorted": "SELECT * FROM {t} WHERE amount > 5000 ORDER BY amount DESC, id LIMIT 100",
}


@dataclass
class Bench:
    dsn: str
    engine: Engine
    seq: int = 1 << 40

    def table(self, name: str, extra: str = "") -> TableDefinition:
        self.engine.execute(
            ADMIN,
            f"CREATE SHARED TABLE app.{name} (id BIGINT PRIMARY KEY, category TEXT, amount BIGINT, description TEXT, "
            f"created TIMESTAMP{extra})",
        )
        return self.definition(name)

    def definition(self, name: str) -> TableDefinition:
        resources = self.engine._resources
        with resources.readers.transaction() as connection:
            return resources.lookup.find(connection, ADMIN, TableName("app", name)).definition

    def publish(self, definition: TableDefinition, select: str, *, deleted: bool = False) -> str:
        """A batch of the rows of a query over `range` with id, category, amount, description, created; returns its path."""
        with duckdb.connect() as duck:
            rows = duck.execute(f"{select} ORDER BY id").to_arrow_table()
        self.seq += len(rows)
        arrays = {name: rows[name] for name in rows.column_names}
        arrays["_seq"] = pa.array(range(self.seq, self.seq + len(rows)))
        arrays["_deleted"] = pa.array([deleted] * len(rows))
        layout = batch_layout(definition, 0.01)
        table = pa.table([arrays[field.name].cast(field.type) for field in layout.schema], schema=layout.schema)
        path = f"{definition.path}/shared/batch-{uuid.uuid4().hex}.parquet"
        facts = write_batch(path, table, layout.suited_to([table]), StorageOptions())
        changes = Changes()
        changes.add_batch(definition.table_id, below_table(definition, path), facts)
        with connect(self.dsn) as connection:
            commit(connection, definition.catalog_id, newest_snapshot(connection), changes)
        return path

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        result: Any = self.engine.execute(ADMIN, sql)[-1]
        return [tuple(row.values()) for row in result.table.to_pylist()]


@contextmanager
def open_bench() -> Iterator[Bench]:
    with benchmark_database() as dsn, tempfile.TemporaryDirectory(prefix="lakefork-bench-") as data:
        with connect(dsn) as connection:
            create_catalog(connection, "main", str(Path(data) / "main"))
        with Engine(Settings(), dsn) as engine:
            engine.execute(ADMIN, "CREATE NAMESPACE app")
            yield Bench(dsn, engine)


def rows_of(ids: str, count: int, first: int = 0) -> str:
    """ids: an expression over i; the columns of the issue's example, and a time that grows with the id."""
    return (
        f"SELECT id, 'cat_' || (id % 100) AS category, id * 7 % 10000 AS amount, 'description of ' || md5(id::text) AS description, "
        f"TIMESTAMP '2025-01-01' + INTERVAL (id) SECOND AS created FROM (SELECT {ids} AS id FROM range({first}, {first + count}) r(i))"
    )


def medians(
    works: Mapping[str, Callable[[], Any]], before: Mapping[str, Callable[[], Any]] | None = None
) -> dict[str, float]:
    """Seconds of each, in turns, so that all see the same machine; the first turn only warms up.

    before: what happens before each turn of some, and is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS + 1):
        for name, work in works.items():
            if before and name in before:
                before[name]()
            started = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def _median(work: Callable[[], Any]) -> float:
    return medians({"": work})[""]


def _skipping(bench: Bench) -> list[Figure]:
    definition = bench.table("skipping")
    for number in range(100):
        bench.publish(definition, rows_of("i", 10_000, number * 10_000))
    figures = []
    ((_, _, batches, read, *_),) = bench.rows(
        "EXPLAIN SELECT * FROM app.skipping WHERE created BETWEEN TIMESTAMP '2025-01-03' AND TIMESTAMP '2025-01-04'"
    )
    figures.append(
        Figure(AREA, "100 batches, a day of 11: files skipped", 100 * (1 - read / batches), "%", at_least=80)
    )
    _, sizes = _files(bench, definition)
    ((_, _, _, read, *_),) = bench.rows("EXPLAIN SELECT * FROM app.skipping WHERE id = 123456")
    share = 100 * (1 - read * max(sizes) / sum(sizes))
    figures.append(Figure(AREA, "the same, one key: bytes skipped", share, "%", at_least=90))
    scattered = bench.table("scattered")
    for number in range(100):
        bench.publish(scattered, rows_of(f"i * 100 + {number}", 10_000))
    _, sizes = _files(bench, scattered)
    ((_, _, _, read, *_),) = bench.rows("EXPLAIN SELECT * FROM app.scattered WHERE id = 123456")
    share = 100 * (1 - read * max(sizes) / sum(sizes))
    figures.append(Figure(AREA, "keys scattered over all batches, one key: bytes skipped", share, "%", at_least=90))
    column = scattered.key[0]
    candidates, _ = _files(bench, scattered)
    probe = Probe(candidates, column.column_id, [duckdb_literal(123456, column.type)])
    seconds = _median(lambda: bench.engine._resources.workers.run(probe))
    figures.append(Figure(AREA, "a look into bloom filters, per file", 1000 * seconds / 100, "ms", at_most=1))
    return [*figures, _deciding()]


def _files(bench: Bench, definition: TableDefinition) -> tuple[list[str], list[int]]:
    with connect(bench.dsn) as connection:
        found = connection.execute(
            "SELECT path, file_size_bytes FROM lakefork.table_files(%s, %s, NULL, '{}')",
            (definition.catalog_id, definition.table_id),
        ).fetchall()
    return [row["path"] for row in found], [row["file_size_bytes"] for row in found]


def _deciding() -> Figure:
    key = Column(4, "id", column_type("int64"))
    created = Column(8, "created", column_type("timestamp"))
    batches = [
        Batch(
            f"batch-{n}.parquet",
            {
                4: ColumnBounds(str(n * 100), str(n * 100 + 99), 0, 100),
                2: ColumnBounds("0", "0", 0, 100),
                8: ColumnBounds(
                    f"2025-01-01 {n // 60 % 24:02}:{n % 60:02}:00",
                    f"2025-01-01 {n // 60 % 24:02}:{n % 60:02}:59",
                    0,
                    100,
                ),
            },
        )
        for n in range(1_000)
    ]
    asked = [Predicate(key, ">=", (5_000,)), Predicate(key, "<", (90_000,))]
    filters = [Predicate(created, ">=", (_parsed("2025-01-01 10:00:00"),))]
    seconds = _median(lambda: plan_scan(batches, key, asked, filters))
    return Figure(AREA, "deciding over 1,000 batches", 1000 * seconds, "ms", at_most=5)


def _parsed(text: str) -> Any:
    import datetime

    return datetime.datetime.fromisoformat(text)


def _queries(bench: Bench) -> list[Figure]:
    figures = []
    for layout, ids in (("clean", "{n} * 10000 + i"), ("overlapping", "i * 20 + {n}")):
        definition = bench.table(layout)
        for number in range(20):
            bench.publish(definition, rows_of(ids.format(n=number), 10_000))
        paths, _ = _files(bench, definition)
        newest = (
            " QUALIFY row_number() OVER (PARTITION BY id ORDER BY _seq DESC) = 1" if layout == "overlapping" else ""
        )
        with duckdb.connect() as duck:
            duck.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet({paths!r}){newest}")
            for name, query in QUERIES.items():
                expected = duck.execute(query.format(t="t")).fetchall()
                ours_said = bench.rows(query.format(t=f"app.{layout}"))
                assert sorted(map(repr, ours_said)) == sorted(map(repr, expected)), name
                found = medians({
                    "peer": partial(lambda sql: duck.execute(sql).to_arrow_table(), query.format(t="t")),
                    "ours": partial(bench.engine.execute, ADMIN, query.format(t=f"app.{layout}")),
                })  # fmt: skip
                peer, ours = found["peer"], found["ours"]
                allowed = max(1.5 * peer, peer + 0.025)
                print(f"    {layout}, {name}: DuckDB {1000 * peer:.1f} ms, ours {1000 * ours:.1f} ms", flush=True)
                figures.append(
                    Figure(
                        AREA, f"20 batches, {layout}, {name}: time / what is allowed", ours / allowed, "×", at_most=1
                    )
                )
    return figures


def _kinds_of_tables(bench: Bench) -> list[Figure]:
    """The same 100,000 rows: all cold, half hot, in many versions, under many definitions."""
    cold = bench.table("all_cold")
    for number in range(10):
        bench.publish(cold, rows_of(f"{number} * 10000 + i", 10_000))
    tables = {"all cold": "all_cold"}
    for kind in ("half hot", "half hot, each time with a new row", "a tenth updated since the flush"):
        tables[kind] = kind.replace(" ", "_").replace(",", "")
        _half_hot(bench, tables[kind], updated="updated" in kind)
    for versions in (1, 10, 100):
        table = bench.table(f"versions_{versions}")
        for _ in range(versions):
            bench.publish(table, rows_of("i", 10_000))
        tables[f"{versions} versions"] = f"versions_{versions}"
    tables |= {"one definition": "wide", "10 definitions": "evolved"}
    _with_definitions(bench)
    query = "SELECT category, sum(amount), count(*) FROM app.{t} GROUP BY category"
    queries = {name: query.format(t=table) for name, table in tables.items()}
    for name in ("one definition", "10 definitions"):
        queries[name] = queries[name].replace("count(*)", "sum(more_0), sum(more_8)")
    one_more = f"INSERT INTO app.{tables['half hot, each time with a new row']} (category) VALUES ('new')"
    times = medians(
        {name: partial(bench.engine.execute, ADMIN, sql) for name, sql in queries.items()},
        {"half hot, each time with a new row": partial(bench.engine.execute, ADMIN, one_more)},
    )
    for name, found in times.items():
        print(f"    {name}: {1000 * found:.1f} ms", flush=True)
    return [
        *(
            Figure(AREA, f"{name}: time / all cold", found / times["all cold"], "×", at_most=2)
            for name, found in times.items()
            if "half hot" in name or "updated" in name
        ),
        Figure(
            AREA, "10 flushed versions a key: time / one", times["10 versions"] / times["1 versions"], "×", at_most=2
        ),
        Figure(
            AREA, "100 flushed versions a key: time / one", times["100 versions"] / times["1 versions"], "×", at_most=4
        ),
        Figure(
            AREA, "10 schema versions: time / one", times["10 definitions"] / times["one definition"], "×", at_most=1.1
        ),
    ]


def _half_hot(bench: Bench, name: str, *, updated: bool) -> None:
    """50,000 rows in batches and as many new ones hot; updated: all in batches, and every tenth again as a hot version."""
    table = bench.table(name)
    for number in range(10 if updated else 5):
        bench.publish(table, rows_of(f"{number} * 10000 + i", 10_000))
    if updated:
        bench.engine.execute(ADMIN, f"UPDATE app.{name} SET amount = amount + 1 WHERE id % 10 = 0")
    else:
        bench.engine.execute(ADMIN, f"INSERT INTO app.{name} {rows_of('i', 50_000, 50_000)}")


def _with_definitions(bench: Bench) -> None:
    """The same rows and columns under one definition, and under ten that came with the batches."""
    columns = [f"ADD COLUMN more_{number} INT DEFAULT {number}" for number in range(9)]
    bench.table("wide")
    for column in columns:
        bench.engine.execute(ADMIN, f"ALTER TABLE app.wide {column}")
    bench.table("evolved")
    for number in range(10):
        bench.publish(bench.definition("wide"), _evolved(number, 9))
        bench.publish(bench.definition("evolved"), _evolved(number, number))
        if number < 9:
            bench.engine.execute(ADMIN, f"ALTER TABLE app.evolved {columns[number]}")


def _evolved(number: int, columns: int) -> str:
    more = "".join(f", {n} AS more_{n}" for n in range(columns))
    return f"SELECT *{more} FROM ({rows_of(f'{number} * 10000 + i', 10_000)})"


class _Quiet(JobContext):
    def progress(self, line: str) -> None:
        print(f"    {line}", flush=True)


def _timed_dedup(bench: Bench, table: str) -> tuple[float, dict[str, Any]]:
    run = JobRun(f"snapshot_dedup/{uuid.uuid4().hex}", "snapshot_dedup", uuid.uuid4().hex, "cli", "bench")
    with connect(bench.dsn) as connection:
        context = _Quiet(run, Settings(), bench.dsn, connection, Leases(run.job_id, 600))
        started = time.perf_counter()
        with _Heartbeat(context) as meter:
            result = run_dedup(context, SnapshotDedupParams(table=table))
        seconds = time.perf_counter() - started
        context.leases.release(connection)
    return seconds, {**result, "memory": meter.usage.peak_memory_mb}


def _dedup(bench: Bench) -> list[Figure]:
    """50 batches of 100,000 rows; half of all rows are superseded."""
    ours, peer, memory = [], [], []
    for number in range(3):
        definition = bench.table(f"dedup_{number}")
        for place in range(50):
            bench.publish(definition, rows_of(f"(i * 25 + {place % 25})", 100_000))
        paths, _ = _files(bench, definition)
        target = f"{definition.path}/duckdb.parquet"
        with duckdb.connect() as duck:
            started = time.perf_counter()
            duck.execute(
                f"COPY (SELECT * FROM read_parquet({paths!r}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY _seq DESC) = 1 "
                f"ORDER BY id) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
            )
            peer.append(time.perf_counter() - started)
        seconds, result = _timed_dedup(bench, f"dedup_{number}")
        ours.append(seconds)
        memory.append(result["memory"])
        assert (result["rows_in"], result["rows_out"]) == (5_000_000, 2_500_000), result
        print(f"    dedup: DuckDB {peer[-1]:.2f} s, ours {ours[-1]:.2f} s", flush=True)
    ratio = statistics.median(ours) / statistics.median(peer)
    return [
        Figure(AREA, "dedup of 50 batches of 100,000 rows, half superseded: time / DuckDB", ratio, "×", at_most=2),
        Figure(AREA, "the same: peak memory of this process, JVM and workers", max(memory) / 1024, "GB", at_most=4),
    ]


def _forgetting(bench: Bench) -> list[Figure]:
    """Half of 2,000,000 rows were deleted long ago; a first dedup has warmed Spark up."""
    definition = bench.table("deleted")
    for place in range(20):
        bench.publish(definition, rows_of(f"(i * 20 + {place})", 100_000))
    for place in range(10):
        bench.publish(definition, rows_of(f"(i * 20 + {place})", 100_000), deleted=True)
    seconds, result = _timed_dedup(bench, "deleted")
    assert (result["rows_in"], result["rows_out"]) == (3_000_000, 1_000_000), result
    return [Figure(AREA, "deleted rows that dedup forgets", 1_000_000 / seconds, "rows/s", at_least=100_000)]


PARTS: list[Callable[[Bench], list[Figure]]] = [_skipping, _queries, _kinds_of_tables]
PARTS_ON_SPARK: list[Callable[[Bench], list[Figure]]] = [_dedup, _forgetting]


def measure() -> list[Figure]:
    with open_bench() as bench:
        figures = [figure for part in PARTS for figure in part(bench)]
        with benchmark_spark():
            return figures + [figure for part in PARTS_ON_SPARK for figure in part(bench)]
