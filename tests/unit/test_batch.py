"""Batches: field ids, statistics as text, and what the footer says."""

import datetime
import uuid
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakefork.cold.batch import BatchLayout, with_field_ids, write_batch
from lakefork.cold.statistics import ColumnStatistics, bound_text
from lakefork.storage import StorageOptions


def test_facts_are_those_of_the_written_file(tmp_path: Path) -> None:
    path = str(tmp_path / "batch-0.parquet")
    rows = pa.table({
        "id": pa.array([3, 1, 2], pa.int64()),
        "name": pa.array(["b", None, "a"]),
        "score": pa.array([1.5, float("nan"), -2.0]),
        "none": pa.array([None, None, None], pa.int32()),
    })  # fmt: skip
    layout = BatchLayout(with_field_ids(rows.schema, {"id": 11, "name": 12, "score": 13, "none": 14}))
    facts = write_batch(path, rows, layout, StorageOptions())
    assert (facts.size_bytes, facts.record_count) == (Path(path).stat().st_size, 3)
    assert facts.columns == {
        11: ColumnStatistics(3, 0, "1", "3"),
        12: ColumnStatistics(3, 1, "a", "b"),
        13: ColumnStatistics(3, 0, None, None, contains_nan=True),
        14: ColumnStatistics(3, 3, None, None),
    }
    metadata = pq.read_metadata(path)
    assert facts.footer_size == metadata.serialized_size
    ids = duckdb.sql(f"SELECT name, field_id FROM parquet_schema('{path}') WHERE field_id IS NOT NULL").fetchall()
    assert ids == [("id", 11), ("name", 12), ("score", 13), ("none", 14)]


def test_a_file_with_other_types_than_defined_is_noticed(tmp_path: Path) -> None:
    layout = BatchLayout(with_field_ids(pa.schema([("id", pa.int64())]), {"id": 11}))
    other = BatchLayout(with_field_ids(pa.schema([("id", pa.int32())]), {"id": 11}))
    object.__setattr__(layout, "parquet_schema", other.parquet_schema)
    rows = pa.table({"id": pa.array([1], pa.int64())})
    facts = write_batch(str(tmp_path / "batch-0.parquet"), rows, layout, StorageOptions())
    assert not facts.as_defined


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "1"), (False, "0"), (7, "7"), (-1.5, "-1.5"), (float("inf"), "inf"), (float("nan"), None), (None, None),
        (Decimal("1.20"), "1.20"), ("ä", "ä"), ("", ""), (b"\x00\xff", "00FF"), (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.time(1, 2, 3), "01:02:03"), (datetime.datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02 03:04:05.000006"),
        (datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone(datetime.timedelta(hours=1))), "2026-01-02 02:00:00+00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"), ([1], None),
    ],
)  # fmt: skip
def test_bounds_as_text(value: object, text: str | None) -> None:
    assert bound_text(value) == text


def test_what_other_readers_need(tmp_path: Path) -> None:
    """Ids of what arrays hold, bounds of UUIDs and JSON as text, and no bounds that hide NaN."""
    path = str(tmp_path / "batch-0.parquet")
    rows = pa.table({
        "u": pa.array([uuid.UUID(int=2).bytes, uuid.UUID(int=1).bytes], pa.uuid()),
        "j": pa.array(['{"a": 1}', "[]"], pa.json_(pa.string())),
        "l": pa.array([[1, None], None], pa.list_(pa.int32())),
        "f": pa.array([float("nan"), None]),
    })  # fmt: skip
    layout = BatchLayout(with_field_ids(rows.schema, {"u": 4, "j": 5, "l": 6, "f": 8}))
    facts = write_batch(path, rows, layout, StorageOptions())
    assert facts.as_defined
    assert facts.columns == {
        4: ColumnStatistics(2, 0, str(uuid.UUID(int=1)), str(uuid.UUID(int=2))),
        5: ColumnStatistics(2, 0, "[]", '{"a": 1}'),
        8: ColumnStatistics(2, 1, None, None, contains_nan=True),
    }
    ids = duckdb.sql(f"SELECT name, field_id FROM parquet_schema('{path}') WHERE field_id IS NOT NULL").fetchall()
    assert ids == [("u", 4), ("j", 5), ("l", 6), ("element", 7), ("f", 8)]
    assert duckdb.sql(f"SELECT l FROM '{path}' WHERE f > 1").fetchall() == [([1, None],)]
