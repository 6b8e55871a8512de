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
