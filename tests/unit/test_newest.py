"""The newest version of each key, in order, however the versions come."""

import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefork.read.newest import TooLargeError, newest_versions, repeated_keys

SCHEMA = pa.schema([("user", pa.string()), ("id", pa.int64()), ("v", pa.string()), ("_seq", pa.int64())])


def batches(rows: list[tuple[Any, ...]], size: int, schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
    return table.to_batches(max_chunksize=size)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b", "ä"]), st.integers(-3, 3), st.text(max_size=3)), max_size=60),
    st.randoms(use_true_random=False), st.integers(1, 20), st.sampled_from([1, 300, 10**9]),
)  # fmt: skip
def test_it_keeps_what_a_dictionary_keeps(
    rows: list[tuple[str, int, str]], dice: Any, size: int, max_bytes: int
) -> None:
    versions = [(*row, seq) for seq, row in enumerate(rows)]
    expected = {(user, key): (value, seq) for user, key, value, seq in versions}
    dice.shuffle(versions)
    try:
        found = newest_versions(batches(versions, size), SCHEMA, ["user", "id"], "_seq", max_bytes)
    except TooLargeError:
        assert max_bytes < 10**9
        return
    assert found.read == len(versions) and found.repeated == 0
    rows_found = [tuple(row.values()) for row in found.rows.to_pylist()]
    assert rows_found == [(*key, *expected[key]) for key in sorted(expected, key=lambda one: (one[0].encode(), one[1]))]
    assert repeated_keys(found.rows.select(["user", "id"])) == 0


def test_the_same_seq_twice_is_counted() -> None:
    found = newest_versions(
        batches([("a", 1, "x", 5), ("a", 1, "y", 5), ("a", 2, "z", 5)], 10), SCHEMA, ["user", "id"], "_seq", 10**9
    )
    assert (found.rows.num_rows, found.repeated) == (2, 1)


def test_keys_that_arrow_cannot_sort_are_sorted_by_their_storage() -> None:
    schema = pa.schema([("id", pa.uuid()), ("_seq", pa.int64())])
    keys = [uuid.UUID(int=number) for number in (3, 1, 3, 2)]
    found = newest_versions(
        batches([(key.bytes, seq) for seq, key in enumerate(keys)], 2, schema), schema, ["id"], "_seq", 10**9
    )
    assert [(row["id"], row["_seq"]) for row in found.rows.to_pylist()] == [(keys[1], 1), (keys[3], 3), (keys[0], 2)]


def test_repeated_keys_are_counted() -> None:
    assert repeated_keys(pa.table({"a": [1, 1, 1, 2], "b": [1, 1, 2, 2]})) == 1
    assert repeated_keys(pa.table({"a": pa.array([], pa.int64())})) == 0


@pytest.mark.parametrize("names", [["a.b", "c d"], ['"', "_seq2"]])
def test_columns_may_have_any_name(names: list[str]) -> None:
    schema = pa.schema([(names[0], pa.int64()), (names[1], pa.int64())])
    found = newest_versions(batches([(1, 1), (1, 2)], 1, schema), schema, names[:1], names[1], 16)
    assert found.rows.to_pylist() == [{names[0]: 1, names[1]: 2}]


def test_superseded_versions_take_no_memory_and_too_many_others_raise() -> None:
    same_key = batches([("a", 1, "x" * 100, seq) for seq in range(1_000)], 10)
    found = newest_versions(same_key, SCHEMA, ["user", "id"], "_seq", 5_000)
    assert found.rows.to_pylist() == [{"user": "a", "id": 1, "v": "x" * 100, "_seq": 999}]
    with pytest.raises(TooLargeError):
        newest_versions(
            batches([("a", key, "x" * 100, key) for key in range(1_000)], 10), SCHEMA, ["user", "id"], "_seq", 5_000
        )
