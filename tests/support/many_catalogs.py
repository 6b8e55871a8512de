"""Very many catalogs, written straight into the tables: a table, files, statistics and waiting rows in each."""

from lakefork.catalog.connection import Connection

FILES = 3


def add_catalogs(connection: Connection, count: int, first: int = 1000) -> None:
    numbers = {"first": first, "last": first + count - 1, "files": FILES, "snapshot": 0}
    for statement in (
        "INSERT INTO ducklake_catalog (catalog_id, catalog_name, begin_snapshot) "
        "SELECT i, 'tenant-' || lpad(i::text, 7, '0'), %(snapshot)s FROM generate_series(%(first)s::bigint, %(last)s) i",
        "INSERT INTO ducklake_metadata (key, value, scope, scope_id) "
        "SELECT 'data_path', '/lake/' || i, 'catalog', i FROM generate_series(%(first)s::bigint, %(last)s) i",
        "INSERT INTO ducklake_schema (catalog_id, schema_id, begin_snapshot, schema_name, path, path_is_relative) "
        "SELECT i, 1, %(snapshot)s, 'app', 'app', true FROM generate_series(%(first)s::bigint, %(last)s) i",
        "INSERT INTO ducklake_table (catalog_id, table_id, schema_id, begin_snapshot, table_name, path, path_is_relative) "
        "SELECT i, 2, 1, %(snapshot)s, 'events', 'events', true FROM generate_series(%(first)s::bigint, %(last)s) i",
        "INSERT INTO ducklake_table_stats (catalog_id, table_id, record_count, next_row_id, file_size_bytes) "
        "SELECT i, 2, 100 * %(files)s, 0, 5000 * %(files)s FROM generate_series(%(first)s::bigint, %(last)s) i",
        "INSERT INTO ducklake_data_file (catalog_id, data_file_id, table_id, begin_snapshot, path, path_is_relative, record_count, file_size_bytes) "
        "SELECT i, i * %(files)s + n, 2, %(snapshot)s, 'shared/batch-' || n || '.parquet', true, 100, 5000 "
        "FROM generate_series(%(first)s::bigint, %(last)s) i, generate_series(1, %(files)s) n",
        "INSERT INTO lakefork.hot_count (catalog_id, table_id, user_id, versions, oldest_at, notified) "
        "SELECT i, 2, '', 10 + i %% 50, now() - make_interval(secs => i %% 5000), false FROM generate_series(%(first)s::bigint, %(last)s) i",
    ):
        connection.execute(statement, numbers)
    connection.execute("ANALYZE")
