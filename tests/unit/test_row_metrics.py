"""What a flush measures of the rows it writes: good rows give zeros, and each fault is counted in its file."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakefork.cold.statistics import BatchFacts
from lakefork.model.column_types import BIGINT, TEXT
from lakefork.model.tables import Column, TableDefinition
from lakefork.upkeep.flush.task import RowMetrics, _file_metrics

MINE = TableDefinition(
    1, "main", 3, 2, "app", "mine", 1, 1, 1, 6, "/lake/app/mine",
    (Column(4, "id", BIGINT, nullable=False), Column(5, "v", TEXT, nullable=False)),
    {"kind": "USER", "primary_key": "[4]"},
)  # fmt: skip
GOOD = {"repeated_keys": 0, "repeated_seqs": 0, "nulls in _seq": 0, "nulls in id": 0, "nulls in v": 0}


def rows(*found: tuple[str, int | None, str | None]) -> pa.Table:
    values: list[dict[str, Any]] = [
        {"id": key, "v": value, "_seq": place, "_deleted": False, "_user_id": user}
        for place, (user, key, value) in enumerate(found)
    ]
    return pa.Table.from_pylist(values, MINE.arrow_schema)


def measured(table: pa.Table, *sizes: int) -> list[dict[str, int]]:
    """Of files with so many rows each."""
    metrics, start, found = RowMetrics(MINE, table), 0, []
    for size in sizes:
        found.append(metrics.of(table.slice(start, size), 0))
        start += size
    return found


def test_good_rows_have_nothing_but_zeros() -> None:
    table = rows(("ada", 1, "a"), ("ada", 2, "b"), ("bob", 1, "c"))
    assert measured(table, 2, 1) == [GOOD, GOOD], "a key is unique per user"


def test_a_key_that_occurs_twice_is_counted_in_its_file() -> None:
    table = rows(("ada", 1, "a"), ("ada", 1, "b"), ("bob", 1, "c"))
    assert measured(table, 2, 1) == [{**GOOD, "repeated_keys": 1}, GOOD]


def test_a_key_that_goes_on_in_the_next_file_is_counted() -> None:
    table = rows(("ada", 1, "a"), ("ada", 2, "b"), ("ada", 2, "c"), ("ada", 3, "d"))
    assert measured(table, 2, 2) == [GOOD, {**GOOD, "repeated_keys": 1}]


def test_a_null_where_there_must_be_none_is_counted_in_its_file() -> None:
    table = rows(("ada", 1, "a"), ("bob", 1, None), ("bob", 2, None))
    assert measured(table, 1, 2) == [GOOD, {**GOOD, "nulls in v": 2}]


def test_rows_and_types_are_those_of_the_written_file() -> None:
    table, facts = rows(("ada", 1, "a"), ("ada", 2, "b")), BatchFacts.of(100, 10, 2, {})
    assert _file_metrics(table, facts) == {"rows_kept": 2, "rows_written": 2, "wrong_types": 0}
    assert _file_metrics(table, replace(facts, as_defined=False))["wrong_types"] == 1
