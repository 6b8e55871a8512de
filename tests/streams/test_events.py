"""Events: who writes and reads them, and what comes back."""

import datetime
import decimal
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from lakefork.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from lakefork.sql.session import Role
from streams.conftest import Make, Stored
from support.fork_lake import fork
from support.sql_cases import add_user
from support.sql_lake import SqlLake, refuse

SERVICE = {"user": "bot", "role": Role.SERVICE}


def test_users_see_their_own_events_and_services_see_all(lake: SqlLake, stream: Make) -> None:
    table = stream("n BIGINT, what TEXT")
    for number, user in enumerate(("ada", "bob", "ada")):
        assert lake.count(f"INSERT INTO {table} VALUES (?, 'typing')", number, user=user) == 1
    assert lake.rows(f"SELECT * FROM {table}", user="ada") == [(0, "typing"), (2, "typing")]
    assert lake.rows(f"SELECT n FROM {table} WHERE n > 0", user="bob") == [(1,)]
    assert lake.rows(f"SELECT * FROM {table}", user="eve") == []
    assert lake.rows(f"SELECT _user_id, n FROM {table} ORDER BY n", **SERVICE) == [("ada", 0), ("bob", 1), ("ada", 2)]
    assert lake.rows(f"SELECT * FROM {table} WHERE _user_id = 'bob'") == [(1, "typing")]
    refuse(lake, PermissionDeniedError, "_user_id needs role service", f"SELECT _user_id FROM {table}", user="ada")
    for name in ("_seq", "_deleted", "_updated", "_at", "_xid"):
        refuse(lake, InvalidInputError, f'"{name}" not found', f"SELECT {name} FROM {table}", **SERVICE)


def test_events_of_a_service_are_its_own_or_those_of_as_user(lake: SqlLake, stream: Make) -> None:
    table, known = stream(), add_user(lake)
    lake.run(f"INSERT INTO {table} VALUES (1)", **SERVICE)
    lake.run(f"INSERT INTO {table} AS USER '{known}' VALUES (2), (3)", **SERVICE)
    assert lake.rows(f"SELECT n FROM {table}", user=known) == [(2,), (3,)]
    refuse(lake, InvalidInputError, "needs a user", f"INSERT INTO {table} VALUES (1)")
    refuse(lake, PermissionDeniedError, "AS USER requires", f"INSERT INTO {table} AS USER 'x' VALUES (1)", user="ada")
    refuse(
        lake, PermissionDeniedError, "Invalid user_id", f"INSERT INTO {table} AS USER 'nobody' VALUES (1)", **SERVICE
    )
    audited = "SELECT actor, action, affected_rows FROM system.audit WHERE table_name = ?"
    assert lake.rows(audited, table) == [("bot", "INSERT", 2)]


def test_every_way_of_inserting_and_every_type(lake: SqlLake, stream: Make) -> None:
    table = stream(
        "n BIGINT, t TEXT DEFAULT 'x', b BOOLEAN, d DOUBLE, c DECIMAL(10, 2), day DATE, at TIMESTAMP DEFAULT NOW(), "
        "zoned TIMESTAMPTZ, u UUID, j JSON, raw BLOB, list INT[]"
    )
    everything = "1, 'ü', true, 0.5, 1.25, '2026-01-02', '2026-01-02 03:04:05', '2026-01-02 03:04:05+02'"
    lake.run(
        f"INSERT INTO {table} VALUES ({everything}, '{uuid.UUID(int=5)}', '{{\"a\": 1}}', '\\x01'::BLOB, [1, NULL, 3])",
        user="ada",
    )
    ((n, t, b, d, c, day, at, zoned, u, j, raw, numbers),) = lake.rows(f"SELECT * FROM {table}", user="ada")
    assert (n, t, b, d, c) == (1, "ü", True, 0.5, decimal.Decimal("1.25"))
    assert (day, at) == (datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5))
    assert zoned == datetime.datetime(2026, 1, 2, 1, 4, 5, tzinfo=datetime.UTC)
    assert (u, j, raw, numbers) == (uuid.UUID(int=5), '{"a": 1}', b"\x01", [1, None, 3])
    lake.run(f"INSERT INTO {table} (n) VALUES (2), (3)", user="ada")
    lake.run(f"INSERT INTO {table} (n, t) SELECT n + 3, t || '!' FROM {table} WHERE n = 1", user="ada")
    lake.engine.load(lake.session("ada"), table, pa.table({"n": [5, 6], "t": ["a", None]}))
    assert lake.rows(f"SELECT n, t, at IS NOT NULL FROM {table} WHERE n > 1 ORDER BY n", user="ada") == [
        (2, "x", True), (3, "x", True), (4, "ü!", True), (5, "a", True), (6, None, True),
    ]  # fmt: skip


def test_a_refused_insert_leaves_nothing(lake: SqlLake, stream: Make) -> None:
    table = stream("n BIGINT NOT NULL, t TEXT")
    refuse(
        lake,
        InvalidInputError,
        "column n cannot be NULL",
        f"INSERT INTO {table} VALUES (1, 'a'), (NULL, 'b')",
        user="ada",
    )
    refuse(lake, InvalidInputError, "has no column x", f"INSERT INTO {table} (x) VALUES (1)", user="ada")
    with pytest.raises(InvalidInputError, match="NUL"):
        lake.engine.load(lake.session("ada"), table, pa.table({"n": [1, 2], "t": ["a", "a\0b"]}))
    assert lake.rows(f"SELECT * FROM {table}", user="ada") == []


def test_rules_narrow_what_a_user_writes_and_reads(lake: SqlLake, stream: Make) -> None:
    table = stream("n BIGINT, room TEXT")
    lake.run(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')", user=(user := add_user(lake)))
    rule = f"{table}.room = 'a'"
    lake.run("UPDATE system.users SET permissions = ? WHERE user_id = ?", [rule], user)
    assert lake.rows(f"SELECT n FROM {table}", user=user) == [(1,)]
    assert lake.rows(f"SELECT count(*) FROM {table}", user=user) == [(1,)]
    lake.run(f"INSERT INTO {table} VALUES (3, 'a')", user=user)
    refuse(lake, PermissionDeniedError, "would violate your rules", f"INSERT INTO {table} VALUES (4, 'b')", user=user)
    refuse(lake, PermissionDeniedError, "statistics", f"SHOW TABLE STATS {table}", user=user)
    assert lake.rows(f"SELECT n FROM {table} ORDER BY n") == [(1,), (2,), (3,)]


def test_statistics_count_what_the_buffer_holds(lake: SqlLake, stream: Make, stored: Stored) -> None:
    table = stream(max_buffer=3)
    for number in range(5):
        lake.run(f"INSERT INTO {table} VALUES ({number})", user="ada" if number % 2 else "bob")
    assert stored.count(table) == 5
    assert lake.rows(f"SHOW TABLE STATS {table}") == [("ada", 1, 1, 0, 0, 0), ("bob", 2, 2, 0, 0, 0)]
    assert lake.rows(f"SHOW TABLE STATS {table}", user="ada") == [("ada", 1, 1, 0, 0, 0)]
    (explained,) = lake.rows(f"EXPLAIN SELECT * FROM {table} WHERE n > 2")
    assert explained[:3] == (table, 3, 0)
    namespace = table.removesuffix(".s")
    listed = "SELECT table_type, rows, bytes FROM system.tables WHERE namespace = ?"
    assert lake.rows(listed, namespace) == [("STREAM", 0, 0)]


@pytest.mark.parametrize("statement", ["INSERT INTO {} VALUES (1)", "SELECT * FROM {}"])
def test_a_fork_has_the_definition_and_a_buffer_of_its_own(lake: SqlLake, stream: Make, statement: str) -> None:
    table = stream(retention="5m")
    lake.run(f"INSERT INTO {table} VALUES (1)", user="ada")
    forked = fork(lake, table.replace(".", "_"))
    forked.run(statement.format(table), user="ada")
    mine = forked.rows(f"SELECT n FROM {table}", user="ada")
    assert mine == ([(1,)] if statement.startswith("INSERT") else [])
    assert forked.rows(f"SHOW TABLES IN {table.removesuffix('.s')}")[0][2] == "STREAM"
    forked.run(f"INSERT INTO {table} VALUES (7)", user="ada")
    assert lake.rows(f"SELECT n FROM {table}", user="ada") == [(1,)]
    lake.run(f"DROP STREAM TABLE {table}")
    assert forked.rows(f"SELECT n FROM {table}", user="ada") == [*mine, (7,)]


def test_drop_removes_the_buffer(lake: SqlLake, stream: Make, stored: Stored) -> None:
    table = stream()
    lake.run(f"INSERT INTO {table} VALUES (1), (2)", user="ada")
    ref = lake.find(table).definition.ref
    lake.run(f"DROP STREAM TABLE {table}")
    refuse(lake, NotFoundError, "does not exist", f"SELECT * FROM {table}", user="ada")
    refuse(lake, NotFoundError, "does not exist", f"INSERT INTO {table} VALUES (1)", user="ada")
    assert stored.value(f"SELECT count(*) FROM stream.t{ref.table_id}") == 0
    assert stored.value(f"SELECT count(*) FROM lakefork.stream_buffer WHERE table_id = {ref.table_id}") == 0
    lake.run(f"CREATE STREAM TABLE {table} (n BIGINT)")
    assert lake.rows(f"SELECT * FROM {table}", user="ada") == []


def test_events_wait_for_no_flush_and_change_no_snapshot(lake: SqlLake, stream: Make, stored: Stored) -> None:
    table = stream()
    before = stored.value("SELECT max(snapshot_id) FROM public.ducklake_snapshot")
    lake.run(f"INSERT INTO {table} VALUES (1), (2); INSERT INTO {table} VALUES (3)", user="ada")
    assert stored.value("SELECT max(snapshot_id) FROM public.ducklake_snapshot") == before
    waiting = "SELECT count(*) FROM system.waiting WHERE namespace = ?"
    assert lake.rows(waiting, table.removesuffix(".s")) == [(0,)]
    name = f"stream.t{lake.find(table).definition.table_id}"
    assert stored.value(f"SELECT relpersistence FROM pg_class WHERE oid = '{name}'::regclass") == "u"


def test_concurrent_writers_lose_nothing(lake: SqlLake, stream: Make) -> None:
    """Also their first events, with which they all make the table of the buffer."""
    table = stream(max_buffer=100_000)
    ready = threading.Barrier(4)

    def write(writer: int) -> None:
        ready.wait(30)
        for number in range(50):
            lake.run(f"INSERT INTO {table} VALUES (?)", writer * 50 + number, user=f"user{writer % 2}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert sorted(lake.rows(f"SELECT n FROM {table}")) == [(number,) for number in range(200)]
