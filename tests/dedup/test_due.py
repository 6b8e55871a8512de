"""When a dedup runs after a flush."""

from lakefork.catalog.connection import Connection
from lakefork.catalog.flushes import count_owners_to_merge
from support.lake import add_file, make_catalog, make_table


def test_owners_of_freshly_flushed_tables_with_many_small_batches_are_counted(connection: Connection) -> None:
    catalog = make_catalog(connection)
    small, large, old = (make_table(connection, catalog, name) for name in ("small", "large", "old"))
    for table, size in ((small, 1000), (large, 2**20), (old, 1000)):
        for number in range(3):
            add_file(connection, table, f"shared/batch-{number}.parquet", size=size)
        connection.execute(
            "INSERT INTO lakefork.flush_log VALUES ('r', %s, %s, 'j', now() - make_interval(hours => %s), %s, '{}')",
            (catalog.catalog_id, table.table_id, 2 if table is old else 0, f"k{table.table_id}"),
        )
    assert count_owners_to_merge(connection, min_batches=3, file_mb=1) == 1
    assert count_owners_to_merge(connection, min_batches=3, file_mb=128) == 2
    assert count_owners_to_merge(connection, min_batches=4, file_mb=128) == 0
