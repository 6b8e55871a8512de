"""DuckDB's first query on one of 1,000 forks, attach included, beside the same on a stock DuckLake catalog of that size."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import duckdb_extensions
import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict
from tests.benchmarks.report import Figure
from tests.benchmarks.server import benchmark_database
from tests.support.lake import resolved_id

from lakefork.catalog.catalogs import Catalog, create_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit, note_clean
from lakefork.catalog.connection import Connection, connect
from lakefork.cold.batch import BatchLayout, with_field_ids, write_batch
from lakefork.model.tables import FIRST_COLUMN_ID
from lakefork.storage import StorageOptions

AREA = "client"
FORKS = 1_000
TABLES, FILES, COLUMNS, ROWS = 10, 10, 10, 100
ROUNDS = 21
CHUNK = 50
PEER = "peer_lake"
NAMES = ["id", *(f"c{number}" for number in range(1, COLUMNS))]
QUERY = f"SELECT count(*), sum(c1) FROM lake.app.t3 WHERE id >= {ROWS}"


def measure(forks: int = FORKS) -> list[Figure]:
    for extension in ("ducklake", "postgres_scanner"):
        duckdb_extensions.import_extension(extension)
    with benchmark_database() as dsn, tempfile.TemporaryDirectory(prefix="lakefork-bench-lake-") as directory:
        _make_peer(dsn, directory)
        with connect(dsn) as connection:
            _fill(connection, create_catalog(connection, "main", f"{directory}/main"))
            alone = _times({"peer": _peer(dsn), "ours": _ours(dsn, iter(["main"] * ROUNDS))})
            _fork(connection, forks)
            connection.execute("ANALYZE")
        names = (f"fork_{(number * 37) % forks}" for number in range(ROUNDS))
        among = _times({"peer": _peer(dsn), "ours": _ours(dsn, names)})
    return [
        Figure(AREA, "first query, attach included: stock DuckLake", among["peer"], "ms"),
        Figure(AREA, f"first query, attach included: a fork among {forks:,}", among["ours"], "ms"),
        Figure(AREA, "first query, attach included: a catalog alone", alone["ours"], "ms"),
        Figure(AREA, f"a fork among {forks:,} / stock DuckLake", among["ours"] / among["peer"], "×", at_most=2.0),
        Figure(AREA, f"a fork among {forks:,} / a catalog alone", among["ours"] / alone["ours"], "×"),
    ]


def _times(queries: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The median of each, taken in turns."""
    rounds = [{name: query() for name, query in queries.items()} for _ in range(ROUNDS)]
    return {name: statistics.median(one[name] for one in rounds) for name in queries}


def _peer(dsn: str) -> Callable[[], float]:
    return lambda: _first_query(_libpq(dsn, PEER), "READ_ONLY")


def _ours(dsn: str, catalogs: Iterator[str]) -> Callable[[], float]:
    libpq = _libpq(dsn, conninfo_to_dict(dsn)["dbname"])
    views = "METADATA_SCHEMA 'ducklake_client', READ_ONLY"
    return lambda: _first_query(f"{libpq} options=-clakefork.catalog={next(catalogs)}", views)


def _first_query(libpq: str, options: str) -> float:
    with _duckdb() as duck:
        started = time.perf_counter()
        duck.execute(f"ATTACH 'ducklake:postgres:{libpq}' AS lake ({options})")
        found = duck.execute(QUERY).fetchall()
        seconds = time.perf_counter() - started
    assert found == [(ROWS * (FILES - 1), sum(range(ROWS, ROWS * FILES)))]
    return seconds * 1000


@contextmanager
def _duckdb() -> Iterator[Any]:
    with duckdb.connect(config={"threads": 1}) as duck:
        duck.execute("LOAD ducklake; LOAD postgres_scanner")
        yield duck


def _libpq(dsn: str, database: Any) -> str:
    parts = conninfo_to_dict(dsn)
    return (
        f"dbname={database} host={parts['host']} port={parts['port']} user={parts['user']} password={parts['password']}"
    )


def _make_peer(dsn: str, directory: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {PEER}")
    options = f"DATA_PATH '{directory}/peer/', DATA_INLINING_ROW_LIMIT 0"
    with _duckdb() as duck:
        duck.execute(f"ATTACH 'ducklake:postgres:{_libpq(dsn, PEER)}' AS lake ({options}); CREATE SCHEMA lake.app")
        columns = ", ".join(f"{name} BIGINT" for name in [*NAMES, "_seq"])
        values = ", ".join("i" for _ in [*NAMES, "_seq"])
        for table in range(TABLES):
            duck.execute(f"CREATE TABLE lake.app.t{table} ({columns}, _deleted BOOLEAN)")
            for file in range(FILES):
                rows = f"range({file * ROWS}, {(file + 1) * ROWS}) r(i)"
                duck.execute(f"INSERT INTO lake.app.t{table} SELECT {values}, false FROM {rows}")


def _fill(connection: Connection, catalog: Catalog) -> None:
    """Tables and clean batches as flushes would leave them."""
    ids = {name: FIRST_COLUMN_ID + place for place, name in enumerate(NAMES)} | {"_seq": 1, "_deleted": 2}
    changes = Changes()
    schema_id = changes.new_id()
    changes.add("ducklake_schema", schema_id=schema_id, schema_name="app", path="app", path_is_relative=True)
    placeholders = [_add_table(changes, schema_id, f"t{number}", ids) for number in range(TABLES)]
    done = commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
    for number, placeholder in enumerate(placeholders):
        table_id = resolved_id(done, placeholder)
        for file in range(FILES):
            values = pa.array(range(file * ROWS, (file + 1) * ROWS), pa.int64())
            rows = pa.table({**dict.fromkeys([*NAMES, "_seq"], values), "_deleted": pa.array([False] * ROWS)})
            layout = BatchLayout(with_field_ids(rows.schema, ids))
            path = f"shared/batch-{file}.parquet"
            batch = write_batch(f"{catalog.data_path}/app/t{number}/{path}", rows, layout, StorageOptions())
            changes = Changes()
            changes.add_batch(table_id, path, batch)
            commit(connection, catalog.catalog_id, newest_snapshot(connection), changes)
            note_clean(connection, [(catalog.catalog_id, table_id)])


def _add_table(changes: Changes, schema_id: int, name: str, ids: dict[str, int]) -> int:
    table_id = changes.new_id()
    changes.add(
        "ducklake_table", table_id=table_id, schema_id=schema_id, table_name=name, path=name, path_is_relative=True
    )
    for column, column_id in ids.items():
        changes.add(
            "ducklake_column", table_id=table_id, column_id=column_id, column_order=column_id, column_name=column,
            column_type="boolean" if column == "_deleted" else "int64", nulls_allowed=True,
        )  # fmt: skip
    for key, value in {"kind": "SHARED", "primary_key": f"[{FIRST_COLUMN_ID}]"}.items():
        changes.add("ducklake_tag", object_id=table_id, key=key, value=value)
    return table_id


def _fork(connection: Connection, forks: int) -> None:
    names = [f"fork_{number}" for number in range(forks)]
    for first in range(0, forks, CHUNK):
        connection.execute("SELECT lakefork.fork_catalogs('main', %s)", (names[first : first + CHUNK],))
