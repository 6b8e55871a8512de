"""Flush end to end: SQL in, Parquet out, exact rows."""

import re
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from support.flush_lake import Filled, FlushLake


def test_rows_of_users_become_batches_and_read_the_same(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT NOT NULL)")
    lake.run("INSERT INTO app.t VALUES (2, 'b'), (1, 'a'), (3, 'c')", user="ada")
    lake.run("UPDATE app.t SET v = 'bb' WHERE id = 2; DELETE FROM app.t WHERE id = 3", user="ada")
    lake.run("INSERT INTO app.t VALUES (1, 'z')", user="bob")
    result = flush_lake.flush()
    assert (result["tables"], result["users"], result["rows_in"], result["rows_out"], result["files_written"]) == (
        1,
        2,
        6,
        4,
        2,
    )
    root = Path(lake.catalog.data_path)
    assert flush_lake.files_on_disk() == [
        str(root / "app/t/user_ada/batch-0.parquet"),
        str(root / "app/t/user_bob/batch-0.parquet"),
    ]
    assert flush_lake.newest_in_files("app.t") == [(1, "a", "ada"), (2, "bb", "ada"), (1, "z", "bob")]
    assert lake.rows("SELECT id, v FROM app.t ORDER BY id", user="ada") == [(1, "a"), (2, "bb")]
    assert flush_lake.hot_rows() == 6, "flush keeps, the next flush trims"
    assert flush_lake.waiting() == {}
    lake.run("INSERT INTO app.t VALUES (9, 'late')", user="bob")
    assert flush_lake.waiting() == {"bob": 1}
    assert flush_lake.flush()["rows_in"] == 1
    assert flush_lake.hot_rows() == 1, flush_lake.lines
    assert lake.rows("SELECT id, v FROM app.t ORDER BY id", user="bob") == [(1, "z"), (9, "late")]
    manifest = flush_lake.manifest(str(root / "app/t/user_bob"))
    assert [batch["file"] for batch in manifest["batches"]] == ["batch-0.parquet", "batch-1.parquet"]


def test_a_batch_is_sorted_typed_and_filtered(flush_lake: FlushLake) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    lake.run("INSERT INTO app.t VALUES (3, 'c'), (1, 'a'), (2, NULL)")
    flush_lake.flush()
    (path,) = flush_lake.paths("app.t")
    metadata = pq.read_metadata(path)
    assert pq.read_table(path)["id"].to_pylist() == [1, 2, 3]
    group = metadata.row_group(0)
    assert [one.column_index for one in group.sorting_columns] == [0]
    assert (
        group.column(0).compression == "ZSTD" and group.column(0).has_column_index and group.column(0).has_offset_index
    )
    fields = duckdb.sql(f"SELECT name, field_id FROM parquet_schema('{path}') WHERE field_id IS NOT NULL").fetchall()
    assert fields == [("id", 4), ("v", 5), ("_seq", 1), ("_deleted", 2)]
    probes = duckdb.sql(f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{path}', 'id', 77)").fetchall()
    assert probes == [(True,)]


def test_the_log_shows_progress(filled: Filled) -> None:
    filled.flush_lake.flush()
    (last,) = [line for line in filled.flush_lake.lines if "100%" in line]
    assert re.fullmatch(
        r"\[#{20}\] 100% 2 table\(s\), 2 of 2 user\(s\): 26 of 26 versions read \([\d,]+ rows/s\), "
        r"15 rows in 3 file\(s\) written",
        last,
    ), last


def test_rows_of_a_table_that_is_not_written_to_any_more_leave_the_hot_store(filled: Filled) -> None:
    flush_lake = filled.flush_lake
    expected = filled.rows()
    flush_lake.flush()
    assert flush_lake.flush()["tables"] == 0 and flush_lake.hot_rows() == 26, "not yet"
    flush_lake.sql("UPDATE lakefork.watermark SET published_at = published_at - interval '61 minutes' RETURNING 1")
    flush_lake.lake.run("INSERT INTO app.ours VALUES (77, 'new')")
    assert flush_lake.flush(force=False)["tables"] == 0
    assert "26 hot rows of earlier flushes were trimmed" in flush_lake.lines
    assert flush_lake.hot_rows() == 1, "what was not published stays"
    assert filled.rows() == [*expected, ("", 77, "new")]
