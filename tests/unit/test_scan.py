"""Reading batches: what a key look-up need not open."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakefork.cold.batch import FIELD_ID
from lakefork.model.column_types import column_type
from lakefork.model.predicates import Predicate
from lakefork.model.tables import Column
from lakefork.read.scan import scan_sql

ROWS = 10_000
KEYS: dict[str, Any] = {"int64": lambda number: number, "varchar": lambda number: f"key {number:09}"}


def write_even_keys(path: Path, kind: str, *, bloom: bool) -> Column:
    column = Column(4, "k", column_type(kind))
    field = pa.field("k", column.type.arrow, metadata={FIELD_ID: str(column.column_id).encode()})
    keys = pa.array([KEYS[kind](number) for number in range(0, 2 * ROWS, 2)], column.type.arrow)
    options = {"k": {"ndv": ROWS, "fpp": 0.0001}} if bloom else None
    pq.write_table(pa.table([keys], schema=pa.schema([field])), path, bloom_filter_options=options)
    return column


def damage_pages(path: Path) -> None:
    """Only footer and bloom filter stay as they are."""
    chunk = pq.read_metadata(path).row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)


def look_up(path: Path, column: Column, *numbers: int) -> list[Any]:
    keys = tuple(KEYS[column.type.name](number) for number in numbers)
    return duckdb.sql(scan_sql([str(path)], [column], [Predicate(column, "=", keys)])).fetchall()


@pytest.mark.parametrize("kind", KEYS)
def test_a_bloom_filter_lets_a_look_up_of_absent_keys_skip_a_batch(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "batch.parquet"
    column = write_even_keys(path, kind, bloom=True)
    assert look_up(path, column, 4_000) == [(KEYS[kind](4_000),)]
    damage_pages(path)
    assert look_up(path, column, 4_001) == []
    with pytest.raises(duckdb.Error):
        look_up(path, column, 4_000)


@pytest.mark.parametrize("kind", KEYS)
def test_without_a_bloom_filter_only_keys_outside_the_bounds_skip_a_batch(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "batch.parquet"
    column = write_even_keys(path, kind, bloom=False)
    damage_pages(path)
    assert look_up(path, column, 2 * ROWS) == []
    with pytest.raises(duckdb.Error):
        look_up(path, column, 4_001)
