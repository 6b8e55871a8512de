"""Rows that were hot when a column was added are flushed with its default, whatever its type."""

import pytest

from support.flush_lake import FlushLake


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("INT[]", "[1, NULL, 2]", [1, None, 2]),
        ("STRING[]", "['a,b', 'it''s', NULL, '{}', '\"', '\\']", ["a,b", "it's", None, "{}", '"', "\\"]),
        ("INT[]", "[]", []),
        ("BYTES", "'\\xAB\\x00a'", b"\xab\x00a"),
        ("STRING", "'it''s \\ {}'", "it's \\ {}"),
        ("BOOLEAN", "true", True),
    ],
)
def test_a_default_of_any_type_reaches_files(flush_lake: FlushLake, kind: str, default: str, expected: object) -> None:
    lake = flush_lake.lake
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id INT PRIMARY KEY); INSERT INTO app.t VALUES (1)")
    lake.run(f"ALTER TABLE app.t ADD COLUMN v {kind} DEFAULT {default}; INSERT INTO app.t (id) VALUES (2)")
    before = lake.rows("SELECT id, v FROM app.t ORDER BY id")
    assert before == [(1, expected), (2, expected)]
    flush_lake.flush()
    assert lake.rows("SELECT id, v FROM app.t ORDER BY id") == before
    assert [row["v"] for row in sorted(flush_lake.newest_as_dicts("app.t"), key=lambda row: row["id"])] == [
        expected
    ] * 2
