"""read_table shows what SQL shows, now and at snapshots, whatever the table has been through."""

import datetime
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import InvalidInputError, LimitError, NotFoundError, SetupError
from lakefork.settings import Settings, SparkSettings, StorageSettings
from lakefork.spark import read
from lakefork.sql.engine import Engine
from lakefork.upkeep.flush import run as flush
from support.flush_lake import FlushLake
from support.read_lake import ReadLake, rows_of
from support.sql_lake import SqlLake
from support.sql_values import VALUES, same


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
    read_lake.flush_and_trim()
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
        read_lake.flush_and_trim()
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


def test_moments_do_not_depend_on_the_zone_of_the_session(read_lake: ReadLake, monkeypatch: pytest.MonkeyPatch) -> None:
    read_lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id INT PRIMARY KEY, a TIMESTAMP, b TIMESTAMP WITH TIME ZONE)"
    )
    read_lake.run("INSERT INTO app.t VALUES (1, '2026-07-01 12:00:00', '2026-07-01 12:00:00+00')")
    session = read_lake.session
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for state in ("hot", "cold", "by pyarrow"):
            if state == "cold":
                read_lake.run(
                    "ALTER TABLE app.t ADD COLUMN c TIMESTAMP WITH TIME ZONE DEFAULT '2026-07-01 12:00:00+00'"
                )
                read_lake.run("ALTER TABLE app.t ADD COLUMN d TIMESTAMP DEFAULT '2026-07-01 12:00:00'")
                read_lake.flush_and_trim()
            if state == "by pyarrow":
                monkeypatch.setattr("lakefork.spark.read_batches.BatchReader._is_as_defined", lambda *_: False)
            (row,) = read_lake.table("app.t").toArrow().to_pylist()
            noon = datetime.datetime(2026, 7, 1, 12)
            assert (row["a"], row["b"]) == (noon, noon.replace(tzinfo=datetime.UTC)), state
            assert (row.get("d", noon), row.get("c", row["b"])) == (row["a"], row["b"]), state
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")


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
        "b = 'b'",
        "b like 'it%'",
        "e > 1",
        "d = 1.5",
        "f < 0.2",
        "h is not null",
        "id in (1, 31, 51)",
        "c = 4",
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
    read_lake.flush_and_trim()
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
    real = flush.publish_all

    def late(*arguments: Any, **named: Any) -> Any:
        read_lake.run(
            "ALTER TABLE app.t RENAME COLUMN a TO t; ALTER TABLE app.t RENAME COLUMN b TO a; ALTER TABLE app.t RENAME COLUMN t TO b; "
            "ALTER TABLE app.t ADD COLUMN c INT DEFAULT 5"
        )
        return real(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(flush, "publish_all", late)
        read_lake.flush()
    read_lake.run("INSERT INTO app.t (id) VALUES (2)")
    read_lake.flush()
    found = {row["id"]: row for row in read_lake.check("app.t")}
    assert (found[1]["a"], found[1]["b"], found[1]["c"]) == (20, 10, 5)
    assert [row["id"] for row in rows_of(read_lake.table("app.t").where("a = 20 and c = 5"))] == [1]


def numbers(read_lake: ReadLake, kind: str = "SHARED", *, rows: int = 40) -> None:
    """A table of several batches whose keys do not overlap, without hot rows."""
    read_lake.run(f"CREATE NAMESPACE app; CREATE {kind} TABLE app.t (id BIGINT PRIMARY KEY, v INT, w TEXT)")
    for first in range(0, rows, 10):
        for user in ("ada", "bob") if kind == "USER" else (None,):
            read_lake.run(f"INSERT INTO app.t SELECT i, i % 7, 'w' FROM range({first}, {first + 10}) r(i)", user=user)
        read_lake.flush_and_trim()


@pytest.mark.parametrize("kind", ["USER", "SHARED"])
def test_batches_without_common_keys_are_read_as_they_are(read_lake: ReadLake, kind: str) -> None:
    numbers(read_lake, kind)
    frame = read_lake.table("app.t")
    plan = plan_of(frame)
    assert plan.count("FileScan parquet") == 1
    assert not any(
        word in plan for word in ("Window", "Filter (", "Join", "Exchange", "Union", "LocalTableScan", "Range")
    )
    assert "_deleted" not in columns_read(frame)[0], "the catalog knows it"
    read_lake.check("app.t", ["ada", "bob"] if kind == "USER" else None)
    filtered = frame.where("v = 3 and w is not null").select("id")
    assert columns_read(filtered) == ["id:bigint,v:int,w:string"]
    assert "EqualTo(v,3)" in pushed(filtered)[0]
    assert columns_read(frame.select("v")) == ["v:int"]


@pytest.mark.parametrize("kind", ["USER", "SHARED"])
def test_hot_rows_that_are_in_batches_are_not_read_again(read_lake: ReadLake, kind: str) -> None:
    user = "ada" if kind == "USER" else None
    numbers(read_lake, kind, rows=10)
    read_lake.run("INSERT INTO app.t VALUES (20, 1, 'x'), (21, 1, 'x')", user=user)
    read_lake.flush()
    assert read_lake.flush_lake.hot_rows() == 2
    assert not any(word in plan_of(read_lake.table("app.t")) for word in ("Join", "Union"))
    read_lake.run("UPDATE app.t SET v = 2 WHERE id = 20", user=user)
    assert "Join" in plan_of(read_lake.table("app.t"))
    users = ["ada", "bob"] if kind == "USER" else None
    rows = read_lake.check("app.t", users)
    read_lake.flush_lake.sql("UPDATE lakefork.watermark SET cluster_id = 0 RETURNING 1")
    assert read_lake.check("app.t", users) == rows, "a restored dump: all hot rows are read"


def test_hot_rows_over_such_batches_need_no_window(read_lake: ReadLake) -> None:
    numbers(read_lake)
    read_lake.run(
        "UPDATE app.t SET v = 3 WHERE id = 5; DELETE FROM app.t WHERE id = 3; INSERT INTO app.t VALUES (1000, 3, 'x')"
    )
    frame = read_lake.table("app.t")
    assert "BroadcastHashJoin" in plan_of(frame) and "Window" not in plan_of(frame)
    read_lake.check("app.t")
    filtered = frame.where("v = 3")
    assert "EqualTo(v,3)" in pushed(filtered)[0], "the newest cold version is the only one"
    expected = read_lake.flush_lake.lake.rows("SELECT id FROM app.t WHERE v = 3 ORDER BY id")
    assert sorted((row.id,) for row in filtered.collect()) == expected


def test_contested_batches_are_looked_at_together_and_others_are_not(read_lake: ReadLake) -> None:
    numbers(read_lake)
    read_lake.run("UPDATE app.t SET v = 100 WHERE id = 5; DELETE FROM app.t WHERE id = 3")
    read_lake.flush_and_trim()
    frame = read_lake.table("app.t")
    plan = plan_of(frame)
    assert "Window" in plan and plan.count("FileScan parquet") == 2
    read_lake.check("app.t")
    assert frame.where("id = 5 and v = 5").count() == 0, "the old version stays superseded"
    by_value, by_key = pushed(frame.where("v = 5")), pushed(frame.where("id = 5"))
    assert sorted("EqualTo(v,5)" in filters for filters in by_value) == [False, True]
    assert all("EqualTo(id,5)" in filters for filters in by_key)


def test_tombstones_in_batches_are_hidden(read_lake: ReadLake) -> None:
    read_lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v INT)")
    read_lake.run("INSERT INTO app.t VALUES (1, 1), (2, 2); DELETE FROM app.t WHERE id = 1")
    read_lake.flush_and_trim()
    frame = read_lake.table("app.t")
    assert "Window" not in plan_of(frame) and "_deleted" in columns_read(frame)[0]
    assert [row["id"] for row in read_lake.check("app.t")] == [2]
    assert read_lake.table("app.t").where("_deleted").count() == 0


def test_what_snapshots_said(read_lake: ReadLake) -> None:
    read_lake.run("CREATE NAMESPACE app")
    nothing = read_lake.newest_snapshot()
    read_lake.run("CREATE SHARED TABLE app.t (id INT PRIMARY KEY, v INT); INSERT INTO app.t VALUES (1, 1), (2, 2)")
    empty = read_lake.newest_snapshot()
    before = datetime.datetime.now(datetime.UTC)
    first = read_lake.flush()["snapshot_id"]
    between = datetime.datetime.now(datetime.UTC)
    read_lake.run(
        "UPDATE app.t SET v = 20 WHERE id = 2; ALTER TABLE app.t RENAME COLUMN v TO w; ALTER TABLE app.t ADD COLUMN x INT DEFAULT 9"
    )
    altered = read_lake.newest_snapshot()
    second = read_lake.flush()["snapshot_id"]
    read_lake.run("INSERT INTO app.t VALUES (3, 3, 3)")
    assert read_lake.check_at("app.t", empty, empty) == []
    assert rows_of(read_lake.table("app.t", as_of=before)) == []
    assert [row["v"] for row in read_lake.check_at("app.t", first, first)] == [1, 2]
    assert [row["v"] for row in read_lake.check_at("app.t", between, first)] == [1, 2]
    assert [row["w"] for row in read_lake.check_at("app.t", altered, altered)] == [1, 2]
    assert [row["w"] for row in read_lake.check_at("app.t", second, second)] == [1, 20], (
        "hot rows belong to the present"
    )
    for as_of, message in (
        (nothing, f"table app.t does not exist in catalog 'main' at snapshot {nothing}"),
        (10**9, "snapshot 1000000000 does not exist"),
        (10**30, "snapshot 1"),
        (datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), "no snapshot at or before 2000-01-01"),
    ):
        with pytest.raises(NotFoundError, match=message):
            read_lake.table("app.t", as_of=as_of)
    with pytest.raises(InvalidInputError, match="needs a time zone"):
        read_lake.table("app.t", as_of=datetime.datetime(2026, 1, 1))
    read_lake.flush_lake.sql(
        "INSERT INTO lakefork.retained_from SELECT catalog_id, 0, %s FROM ducklake_catalog RETURNING 1", first + 1
    )
    with pytest.raises(NotFoundError, match="no longer retained"):
        read_lake.table("app.t", as_of=first)


def test_what_cannot_be_read_is_refused_in_one_sentence(read_lake: ReadLake) -> None:
    read_lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id INT PRIMARY KEY); CREATE STREAM TABLE app.s (id INT) WITH (retention = '10s')"
    )
    for kind, match, name, options in (
        (NotFoundError, "catalog 'other' does not exist", "app.t", {"catalog": "other"}),
        (NotFoundError, "table app.x does not exist in catalog 'main'", "app.x", {}),
        (NotFoundError, "table other.t does not exist in catalog 'main'", "other.t", {}),
        (InvalidInputError, "needs a namespace", "t", {}),
        (InvalidInputError, "SHARED table, whose rows belong to no user", "app.t", {"user": "ada"}),
        (InvalidInputError, "STREAM table", "app.s", {}),
        (SetupError, "LAKEFORK_DSN", "app.t", {"dsn": ""}),
    ):
        with pytest.raises(kind, match=match) as caught:
            read_lake.table(name, **options)
        assert "\n" not in str(caught.value)


def test_more_hot_rows_than_the_driver_may_hold_are_refused(read_lake: ReadLake) -> None:
    read_lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id INT PRIMARY KEY, v TEXT)")
    read_lake.run("INSERT INTO app.t SELECT i, repeat('x', 1000) FROM range(0, 2000) r(i)")
    small = read_lake.flush_lake.settings.model_copy(update={"spark": SparkSettings(hot_read_mb=1)})
    with pytest.raises(LimitError, match=r"hot rows of app\.t need more than 1 MB: flush .* spark\.hot_read_mb"):
        read_lake.table("app.t", settings=small)
    assert read_lake.table("app.t").count() == 2000
    read_lake.flush_and_trim()
    assert read_lake.table("app.t", settings=small).count() == 2000


def test_a_frame_is_as_of_the_call_whatever_happens_later(read_lake: ReadLake) -> None:
    read_lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id INT PRIMARY KEY, v INT); INSERT INTO app.t VALUES (1, 1)"
    )
    read_lake.flush()
    read_lake.run("INSERT INTO app.t VALUES (2, 2)")
    frame = read_lake.table("app.t")
    before = rows_of(frame)
    read_lake.run("UPDATE app.t SET v = 0; INSERT INTO app.t VALUES (3, 3); ALTER TABLE app.t DROP COLUMN v")
    read_lake.flush_and_trim()
    assert rows_of(frame) == before
    assert len(before) == 2


def test_a_flush_between_the_catalog_and_the_hot_rows_changes_nothing(
    read_lake: ReadLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id INT PRIMARY KEY, v INT)")
    read_lake.run("INSERT INTO app.t VALUES (1, 1), (2, 2)", user="ada")
    read_lake.flush()
    read_lake.run("UPDATE app.t SET v = 20 WHERE id = 2; INSERT INTO app.t VALUES (3, 3)", user="ada")
    real = read.find_table_to_read

    def then_flush(*arguments: Any) -> Any:
        found = real(*arguments)
        read_lake.flush()
        read_lake.run("UPDATE app.t SET v = -1", user="ada")
        read_lake.flush()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(read, "find_table_to_read", then_flush)
        frame = read_lake.table("app.t")
    assert [(row["id"], row["v"]) for row in rows_of(frame)] == [(1, 1), (2, 20), (3, 3)]
    read_lake.check("app.t", ["ada"])


def test_the_session_of_the_caller_stays_as_it_is(read_lake: ReadLake) -> None:
    numbers(read_lake, rows=10)
    session = read_lake.session
    frame = read_lake.table("app.t")
    assert frame.sparkSession is session
    assert session.conf.get("spark.sql.parquet.fieldId.read.enabled") == "false"
    frame.createOrReplaceTempView("numbers")
    assert session.sql("SELECT count(*) AS n FROM numbers WHERE id > 4").collect()[0].n == 5
    session.catalog.dropTempView("numbers")
    assert all(not field.metadata for field in frame.schema)


@pytest.mark.parametrize("directory", ["{a,b}", "[x]", "*", "a?", "\\*", "k=v %41 #: ,"])
def test_paths_are_taken_as_they_are(
    dsn: str, tmp_path: Path, session: SparkSession, make_settings: Callable[..., Settings], directory: str
) -> None:
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", str(tmp_path / directory))
    settings = make_settings()
    with Engine(settings, dsn) as engine:
        read_lake = ReadLake(FlushLake(SqlLake(engine, dsn, catalog), settings, tmp_path / "expectations"), session)
        numbers(read_lake, "USER", rows=10)
        found = [(row["_user_id"], row["id"]) for row in rows_of(read_lake.table("app.t"))]
        assert sorted(found) == [(user, key) for user in ("ada", "bob") for key in range(10)]


def test_a_table_on_s3(
    dsn: str, s3: str, session: SparkSession, make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    boto3.client("s3", endpoint_url=s3, region_name="us-east-1").create_bucket(Bucket="lake")
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", "s3://lake/main")
    settings = make_settings(storage=StorageSettings(s3_endpoint=s3, s3_region="us-east-1"))
    with Engine(settings, dsn) as engine:
        read_lake = ReadLake(FlushLake(SqlLake(engine, dsn, catalog), settings, tmp_path / "expectations"), session)
        numbers(read_lake, "USER", rows=20)
        read_lake.run("ALTER TABLE app.t RENAME COLUMN v TO u; ALTER TABLE app.t ADD COLUMN t TIME DEFAULT '01:00:00'")
        read_lake.run("ALTER TABLE app.t DROP COLUMN t; ALTER TABLE app.t ADD COLUMN x DECIMAL(5, 2) DEFAULT 1.25")
        read_lake.run("UPDATE app.t SET u = 50 WHERE id = 5", user="ada")
        read_lake.check("app.t", ["ada", "bob"])
        read_lake.flush_and_trim()
        assert len(read_lake.check("app.t", ["ada", "bob"])) == 40


def test_batches_of_tombstones_group_nothing(read_lake: ReadLake) -> None:
    read_lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v INT)")
    for user in ("ada", "bob"):
        read_lake.flush_lake.lake.run("INSERT INTO app.t SELECT i, i FROM range(0, 9) r(i)", user=user)
    read_lake.flush_and_trim()
    read_lake.flush_lake.lake.run("DELETE FROM app.t WHERE id IN (0, 5)", user="ada")
    read_lake.flush_and_trim()
    read_lake.flush_lake.dedup()
    read_lake.flush_lake.lake.run("INSERT INTO app.t VALUES (0, 100)", user="ada")  # after its tombstone
    read_lake.flush_and_trim()
    frame = read_lake.table("app.t")
    assert "Window" not in plan_of(frame)
    found = sorted((row["_user_id"], row["id"], row["v"]) for row in frame.collect())
    kept = [(key, key) for key in range(9) if key not in (0, 5)]
    assert found == [("ada", 0, 100), *(("ada", *row) for row in kept), *(("bob", key, key) for key in range(9))]
    expected = read_lake.flush_lake.lake.rows("SELECT id, v FROM app.t ORDER BY id", user="ada")
    assert sorted((row.id, row.v) for row in read_lake.table("app.t", user="ada").collect()) == expected
