"""read_table shows what SQL shows, now and at snapshots, whatever the table has been through."""

import datetime
import uuid
from typing import Any

import pytest
from pyspark.sql import DataFrame

from read_lake import ReadLake, rows_of
from sql_values import VALUES, same


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def columns_read(frame: DataFrame) -> list[str]:
    """ReadSchema of each scan of Parquet."""
    return [part.split(">")[0] for part in plan_of(frame).split("ReadSchema: struct<")[1:]]


def pushed(frame: DataFrame) -> list[str]:
    return [part.split("]")[0] for part in plan_of(frame).split("PushedFilters: [")[1:]]


def test_hot_cold_and_both(read_lake: ReadLake) -> None:
    read_lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    assert read_lake.check("app.t") == []
    assert read_lake.table("app.t").columns == ["id", "v", "_seq", "_deleted"]
    read_lake.run("INSERT INTO app.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    assert len(read_lake.check("app.t")) == 3
    read_lake.flush()
    assert len(read_lake.check("app.t")) == 3, "published and still hot"
    read_lake.run("INSERT INTO app.t VALUES (4, 'd')")
    read_lake.flush()
    read_lake.run(
        "UPDATE app.t SET v = 'bb' WHERE id = 2; DELETE FROM app.t WHERE id = 1; INSERT INTO app.t VALUES (5, 'e')"
    )
    assert [row["v"] for row in read_lake.check("app.t")] == ["bb", "c", "d", "e"]
    read_lake.flush()
    read_lake.flush(table="nothing")
    assert [row["v"] for row in read_lake.check("app.t")] == ["bb", "c", "d", "e"]
    read_lake.run("INSERT INTO app.t VALUES (1, 'again')")
    assert len(read_lake.check("app.t")) == 5


def test_rows_of_users(read_lake: ReadLake) -> None:
    users = ["ada", "../b", "a'b", "Ä%2F", "nobody"]
    read_lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (a INT, b TEXT, v TEXT, PRIMARY KEY (a, b))")
    for round_number in range(3):
        for user in users[:-1]:
            values = ", ".join(f"({n}, 'b{n % 2}', ?)" for n in range(round_number * 2, round_number * 2 + 4))
            read_lake.run("DELETE FROM app.t WHERE a >= 2", user=user)
            read_lake.run(
                f"DELETE FROM app.t; INSERT INTO app.t VALUES {values}", *[f"{user} {round_number}"] * 4, user=user
            )
        assert len(read_lake.check("app.t", users)) == 16
        read_lake.flush()
        assert len(read_lake.check("app.t", users)) == 16
    assert read_lake.table("app.t").columns == ["a", "b", "v", "_seq", "_deleted", "_user_id"]
    assert read_lake.table("app.t", user="ada").columns == ["a", "b", "v", "_seq", "_deleted"]


def spark_sees(value: Any) -> Any:
    """What a value becomes in Spark (docs/spark.md)."""
    if isinstance(value, list):
        return [spark_sees(one) for one in value]
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.time):
        return (
            datetime.datetime.combine(datetime.date(1970, 1, 1), value) - datetime.datetime(1970, 1, 1)
        ) // datetime.timedelta(microseconds=1)
    return value


@pytest.mark.parametrize("state", ["hot", "cold", "by pyarrow"])
def test_every_type(read_lake: ReadLake, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(VALUES))
    read_lake.run(f"CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id INT PRIMARY KEY, {columns})")
    rows = [
        [values[number % len(values)] for values in VALUES.values()] for number in range(max(map(len, VALUES.values())))
    ]
    for number, row in enumerate([*rows, [None] * len(VALUES)]):
        read_lake.run(f"INSERT INTO app.t VALUES (?, {', '.join('?' for _ in row)})", number, *row)
    if state != "hot":
        read_lake.flush()
        read_lake.run("CREATE SHARED TABLE app.u (id INT PRIMARY KEY); INSERT INTO app.u VALUES (1)")
        read_lake.flush()
        assert read_lake.flush_lake.hot_rows() == 1
    if state == "by pyarrow":
        monkeypatch.setattr("lakefork.spark.read_batches.BatchReader._is_as_defined", lambda *_: False)
    found = sorted(read_lake.table("app.t").toArrow().to_pylist(), key=lambda row: row["id"])
    assert len(found) == len(rows) + 1
    for row, expected in zip(found, rows, strict=False):
        for place, value in enumerate(expected):
            assert same(row[f"c{place}"], spark_sees(value)), (list(VALUES)[place], row[f"c{place}"], value)
    assert all(found[-1][f"c{place}"] is None for place in range(len(VALUES)))
    types = dict(read_lake.table("app.t").dtypes)
    assert {kind: types[f"c{place}"] for place, kind in enumerate(VALUES)} == {
        "SMALLINT": "smallint", "INTEGER": "int", "BIGINT": "bigint", "FLOAT": "float", "DOUBLE": "double",
        "DECIMAL(10, 2)": "decimal(10,2)", "DECIMAL(38, 0)": "decimal(38,0)", "BOOLEAN": "boolean", "STRING": "string",
        "BYTES": "binary", "DATE": "date", "TIME": "bigint", "TIMESTAMP": "timestamp_ntz",
        "TIMESTAMP WITH TIME ZONE": "timestamp", "UUID": "string", "JSON": "string", "BIGINT[]": "array<bigint>",
        "STRING[]": "array<string>", "BOOLEAN[]": "array<boolean>", "DOUBLE[]": "array<double>",
        "DECIMAL(10, 2)[]": "array<decimal(10,2)>", "DATE[]": "array<date>", "TIMESTAMP WITH TIME ZONE[]": "array<timestamp>",
        "UUID[]": "array<string>", "BYTES[]": "array<binary>", "JSON[]": "array<string>",
    }  # fmt: skip


STEPS = [
    "ALTER TABLE app.t RENAME COLUMN a TO z; ALTER TABLE app.t ADD COLUMN a BIGINT DEFAULT 7",
    "ALTER TABLE app.t DROP COLUMN b; ALTER TABLE app.t ADD COLUMN b TEXT DEFAULT 'it''s \\ new'; "
    "ALTER TABLE app.t MODIFY COLUMN e BIGINT",
    "ALTER TABLE app.t MODIFY COLUMN d DECIMAL(10, 3); ALTER TABLE app.t MODIFY COLUMN f DOUBLE; "
    "ALTER TABLE app.t MODIFY COLUMN z DOUBLE",
    "ALTER TABLE app.t RENAME COLUMN a TO y; ALTER TABLE app.t RENAME COLUMN z TO a; "
    "ALTER TABLE app.t ADD COLUMN h TIMESTAMP WITH TIME ZONE DEFAULT '2020-01-01 12:00:00+00'",
    'ALTER TABLE app.t ADD COLUMN "an odd.name`,;={}()" INT DEFAULT 3',
    "ALTER TABLE app.t MODIFY COLUMN c FLOAT; ALTER TABLE app.t MODIFY COLUMN e DECIMAL(38, 2)",
    "ALTER TABLE app.t ADD COLUMN list INT[] DEFAULT [1, 2]",
]


def test_old_files_under_new_definitions(read_lake: ReadLake) -> None:
    read_lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t "
        "(id INT PRIMARY KEY, a INT, b TEXT, c SMALLINT, d DECIMAL(5, 1), e INT, f FLOAT)"
    )
    for number, step in enumerate(STEPS):
        first = 10 * number
        read_lake.run(f"INSERT INTO app.t (id, a) VALUES ({first}, {first}), ({first + 1}, 1), ({first + 2}, 2)")
        read_lake.run(
            f"UPDATE app.t SET b = 'b', d = 1.5, e = {number}, f = 0.1, c = {number} WHERE id % 10 = {number % 3}"
        )
        read_lake.run("DELETE FROM app.t WHERE id = 2")
        read_lake.check("app.t")
        read_lake.flush()
        read_lake.run(step)
        read_lake.check("app.t")
    rows = {row["id"]: row for row in read_lake.check("app.t")}
    assert rows[0]["a"] == 0.0 and rows[0]["y"] == 7 and rows[0]["list"] == [1, 2]
    assert rows[0]["an odd.name`,;={}()"] == 3
    for condition in (
        "a = 1",
        "y = 7",
        "b is null",
        "b like 'it%'",
        "e > 1",
        "d = 1.5",
        "f < 0.2",
        "h is not null",
        "id in (1, 31, 51)",
        "c = 2",
    ):
        found = rows_of(read_lake.table("app.t").where(condition))
        by_sql = [
            row
            for row in rows.values()
            if row["id"]
            in [one for (one,) in read_lake.flush_lake.lake.rows(f"SELECT id FROM app.t WHERE {condition}")]
        ]
        assert found == sorted(by_sql, key=repr), condition
        assert found, condition


def test_a_name_that_meant_another_column_is_not_used_to_skip_row_groups(read_lake: ReadLake) -> None:
    read_lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id INT PRIMARY KEY, v INT, w INT)")
    read_lake.run("INSERT INTO app.t VALUES (1, 100, 5), (2, 200, 6)")
    read_lake.flush()
    read_lake.run(
        "ALTER TABLE app.t DROP COLUMN v; ALTER TABLE app.t ADD COLUMN v INT DEFAULT 7; ALTER TABLE app.t RENAME COLUMN w TO x"
    )
    read_lake.run("INSERT INTO app.t (id, v, x) VALUES (3, 100, 7)")
    read_lake.flush()
    read_lake.flush(table="nothing")
    assert [row["id"] for row in rows_of(read_lake.table("app.t").where("v = 7"))] == [1, 2]
    assert [row["id"] for row in rows_of(read_lake.table("app.t").where("v = 100"))] == [3]
    by_x = read_lake.table("app.t").where("x = 6")
    assert [row["id"] for row in rows_of(by_x)] == [2]
    assert any("EqualTo(w,6)" in filters for filters in pushed(by_x)), "by its name in the old file"
    assert any("EqualTo(x,6)" in filters for filters in pushed(by_x))


def test_a_file_that_was_published_after_an_alter(read_lake: ReadLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush reads, the table is altered, the flush publishes: only the file knows what is in it."""
    read_lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id INT PRIMARY KEY, a INT, b INT)")
    read_lake.run("INSERT INTO app.t VALUES (1, 10, 20)")
    real = read_lake_publish = None
    from lakefork.spark import flush

    real = flush.publish_all

    def late(*arguments: Any, **named: Any) -> Any:
        read_lake.run(
            "ALTER TABLE app.t RENAME COLUMN a TO t; ALTER TABLE app.t RENAME COLUMN b TO a; ALTER TABLE app.t RENAME COLUMN t TO b; "
            "ALTER TABLE app.t ADD COLUMN c INT DEFAULT 5"
        )
        return real(*arguments, **named)

    assert read_lake_publish is None
    with monkeypatch.context() as patched:
        patched.setattr(flush, "publish_all", late)
        read_lake.flush()
    read_lake.run("INSERT INTO app.t (id) VALUES (2)")
    read_lake.flush()
    found = {row["id"]: row for row in read_lake.check("app.t")}
    assert (found[1]["a"], found[1]["b"], found[1]["c"]) == (20, 10, 5)
    assert [row["id"] for row in rows_of(read_lake.table("app.t").where("a = 20 and c = 5"))] == [1]
