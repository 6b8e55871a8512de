"""The odd cases of tables, schemas, permissions, locations, streams, AS USER and soft deletes, each by its name."""

import datetime
import itertools
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError, InvalidInputError, LakeforkError, NotFoundError, PermissionDeniedError
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.session import Role
from lakefork.tables import UPDATED
from sql_lake import SqlLake

DATABASE = "sql_edge_cases"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def lake(
    postgres: str, template: str, tmp_path_factory: pytest.TempPathFactory, make_settings: Callable[..., Settings]
) -> Iterator[SqlLake]:
    """One catalog for all cases; each works in a namespace of its own."""
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {template} STRATEGY FILE_COPY")
        dsn = f"{postgres.rpartition('/')[0]}/{DATABASE}"
        with connect(dsn) as connection:
            catalog = create_catalog(connection, "main", str(tmp_path_factory.mktemp("data") / "main"))
        with Engine(make_settings(), dsn) as engine:
            yield SqlLake(engine, dsn, catalog)
        admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@pytest.fixture
def ns(lake: SqlLake) -> str:
    name = f"ns{next(_numbers)}"
    lake.run(f"CREATE NAMESPACE {name}")
    return name


@pytest.fixture
def table(lake: SqlLake, ns: str) -> str:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v STRING, n INTEGER)")
    return f"{ns}.t"


@pytest.fixture
def user_table(lake: SqlLake, ns: str) -> str:
    lake.run(f"CREATE USER TABLE {ns}.mine (id BIGINT PRIMARY KEY, v STRING)")
    return f"{ns}.mine"


@pytest.fixture
def user(lake: SqlLake) -> str:
    """A user of system.users without any rule."""
    return add_user(lake)


def add_user(lake: SqlLake, *rules: str, role: str = "user") -> str:
    name = f"user{next(_numbers)}"
    lake.run("INSERT INTO system.users (user_id, role, permissions) VALUES (?, ?, ?)", name, role, list(rules))
    return name


def refuse(lake: SqlLake, kind: type[LakeforkError], match: str, text: str, *parameters: Any, **who: Any) -> str:
    """The statement fails as it should, with one line; returns the line."""
    with pytest.raises(kind, match=match) as caught:
        lake.run(text, *parameters, **who)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def configs(lake: SqlLake, ns: str) -> Path:
    return Path(lake.catalog.data_path) / "configs" / ns


def newest_snapshot(lake: SqlLake) -> int:
    with psycopg.connect(lake.dsn) as connection:
        row = connection.execute("SELECT max(snapshot_id) FROM public.ducklake_snapshot").fetchone()
    assert row
    return int(row[0])


# Namespaces


def test_a_namespace_is_listed_with_creation_date_table_count_and_options(lake: SqlLake, ns: str) -> None:
    lake.run(f"ALTER NAMESPACE {ns} SET OPTIONS (retention_days = 90, owner = 'ops')")
    lake.run(f"CREATE SHARED TABLE {ns}.a (id BIGINT PRIMARY KEY); CREATE USER TABLE {ns}.b (id BIGINT PRIMARY KEY)")
    (row,) = [row for row in lake.rows("SHOW NAMESPACES") if row[0] == ns]
    assert isinstance(row[1], datetime.datetime)
    assert row[2] == 2
    assert json.loads(row[3]) == {"retention_days": 90, "owner": "ops"}
    lake.run(f"ALTER NAMESPACE {ns} SET OPTIONS (retention_days = 30)")
    (row,) = [row for row in lake.rows("SHOW NAMESPACES") if row[0] == ns]
    assert json.loads(row[3]) == {"retention_days": 30, "owner": "ops"}


def test_a_namespace_with_tables_cannot_be_dropped_and_the_error_lists_them(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.b (id BIGINT PRIMARY KEY); CREATE STREAM TABLE {ns}.a (x INT)")
    assert "a, b" in refuse(lake, ConflictError, "tables", f"DROP NAMESPACE {ns}")
    lake.run(f"DROP TABLE {ns}.a; DROP SHARED TABLE {ns}.b; DROP NAMESPACE {ns}")
    refuse(lake, NotFoundError, ns, f"DROP NAMESPACE {ns}")
    lake.run(f"DROP NAMESPACE IF EXISTS {ns}")


def test_a_namespace_name_is_unique_whatever_its_case(lake: SqlLake, ns: str) -> None:
    refuse(lake, ConflictError, "already", f"CREATE NAMESPACE {ns.upper()}")
    lake.run(f"CREATE NAMESPACE IF NOT EXISTS {ns.upper()}")
    refuse(lake, InvalidInputError, "reserved", "CREATE NAMESPACE System")
    refuse(lake, InvalidInputError, "reserved", "CREATE NAMESPACE INFORMATION_SCHEMA")


# Tables


@pytest.mark.parametrize("kind", ["USER", "SHARED", "STREAM"])
@pytest.mark.parametrize("columns", ["", "()"])
def test_a_table_without_columns_is_refused(lake: SqlLake, ns: str, kind: str, columns: str) -> None:
    refuse(lake, InvalidInputError, "column", f"CREATE {kind} TABLE {ns}.nothing {columns}")


@pytest.mark.parametrize("kind", ["USER", "SHARED", ""])
def test_a_table_without_a_primary_key_is_refused(lake: SqlLake, ns: str, kind: str) -> None:
    refuse(lake, InvalidInputError, "PRIMARY KEY", f"CREATE {kind} TABLE {ns}.nothing (id BIGINT)")


@pytest.mark.parametrize("role", [Role.USER, Role.SERVICE])
@pytest.mark.parametrize(
    "statement",
    ["CREATE NAMESPACE denied", "CREATE USER TABLE {t}2 (id BIGINT PRIMARY KEY)", "ALTER TABLE {t} ADD COLUMN x INT",
     "DROP TABLE {t}", "INSERT INTO system.users (user_id) VALUES ('x')", "UPDATE system.users SET role = 'admin' WHERE true",
     "DELETE FROM system.users WHERE true", "INSERT INTO system.storage_locations VALUES ('x', 'filesystem', '/tmp/x', NULL)"],
)  # fmt: skip
def test_a_user_or_service_without_the_right_to_define_tables_is_refused(
    lake: SqlLake, table: str, user: str, role: Role, statement: str
) -> None:
    refuse(lake, PermissionDeniedError, "needs role admin", statement.format(t=table), user=user, role=role)


@pytest.mark.parametrize("name", ["_seq", "_deleted", "_updated", "_user_id", '"_SEQ"'])
def test_system_column_names_are_reserved(lake: SqlLake, ns: str, table: str, name: str) -> None:
    refuse(lake, InvalidInputError, "reserved", f"CREATE SHARED TABLE {ns}.bad (id BIGINT PRIMARY KEY, {name} INT)")
    refuse(lake, InvalidInputError, "reserved", f"ALTER TABLE {table} ADD COLUMN {name} INT")
    refuse(lake, InvalidInputError, "reserved", f"ALTER TABLE {table} RENAME COLUMN v TO {name}")
    refuse(lake, InvalidInputError, "system", f"ALTER TABLE {table} DROP COLUMN {name}")
    refuse(lake, InvalidInputError, "system", f"ALTER TABLE {table} MODIFY COLUMN {name} BIGINT")
    refuse(lake, InvalidInputError, "system", f"ALTER TABLE {table} RENAME COLUMN {name} TO other")


@pytest.mark.parametrize(
    "name", ["_id", "id", "catalog_id", "_xid", "c4", "versions", "given", "relation_0", "wanted_keys", "user"]
)
def test_a_column_may_have_a_name_that_is_used_inside(lake: SqlLake, ns: str, name: str) -> None:
    lake.run(f'CREATE USER TABLE {ns}.t ("{name}" BIGINT PRIMARY KEY, other STRING, w STRING)')
    lake.run(f"INSERT INTO {ns}.t VALUES (1, 'a', 'b')", user="u")
    lake.flush_by_hand(f"{ns}.t", "u")
    assert lake.count(f'UPDATE {ns}.t SET other = other || w WHERE "{name}" = 1', user="u") == 1
    refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t VALUES (1, 'x', 'y')", user="u")
    assert lake.rows(f'SELECT "{name}", other FROM {ns}.t WHERE "{name}" = 1', user="u") == [(1, "ab")]


def test_a_generated_key_is_given_where_the_key_is_left_out_or_null(lake: SqlLake, ns: str) -> None:
    lake.run(
        f"CREATE USER TABLE {ns}.n (id BIGINT PRIMARY KEY, v STRING); CREATE USER TABLE {ns}.u (id UUID PRIMARY KEY, v STRING)"
    )
    for name, kind in (("n", int), ("u", uuid.UUID)):
        for _ in range(3):
            assert lake.count(f"INSERT INTO {ns}.{name} (v) VALUES ('a')", user="u") == 1
        assert lake.count(f"INSERT INTO {ns}.{name} VALUES (NULL, 'b'), (NULL, 'c')", user="u") == 2
        keys = [row[0] for row in lake.rows(f"SELECT id FROM {ns}.{name}", user="u")]
        assert len(set(keys)) == 5
        assert all(type(key) is kind for key in keys)


@pytest.mark.parametrize("column", ["_seq", "_deleted", "_updated", "_user_id"])
def test_system_columns_cannot_be_set_by_hand(lake: SqlLake, user_table: str, column: str) -> None:
    refuse(lake, InvalidInputError, column, f"INSERT INTO {user_table} (id, {column}) VALUES (1, 1)", user="u")
    refuse(lake, InvalidInputError, column, f"UPDATE {user_table} SET {column} = 1 WHERE id = 1", user="u")
    refuse(lake, InvalidInputError, "column|values", f"INSERT INTO {user_table} VALUES (1, 'a', 5, false)", user="u")
    assert lake.rows(f"SELECT count(*) FROM {user_table}", user="u") == [(0,)]


def test_a_dropped_table_leaves_nothing_behind_for_a_new_one_of_its_name(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'old', 1)")
    before = newest_snapshot(lake)
    lake.run(f"DROP TABLE {table}")
    refuse(lake, NotFoundError, "no table", f"SELECT * FROM {table}")
    refuse(lake, NotFoundError, "no table", f"INSERT INTO {table} VALUES (1, 'x', 1)")
    lake.run(f"CREATE SHARED TABLE {table} (id BIGINT PRIMARY KEY, w STRING)")
    assert lake.rows(f"SELECT * FROM {table}") == []
    lake.run(f"INSERT INTO {table} VALUES (1, 'new')")
    assert lake.rows(f"SELECT id, w FROM {table}") == [(1, "new")]
    assert lake.rows(f"SELECT id, v FROM {table} AT (VERSION => {before})") == []


def test_drop_needs_the_right_kind_and_a_table_that_exists(lake: SqlLake, table: str) -> None:
    refuse(lake, InvalidInputError, "SHARED", f"DROP USER TABLE {table}")
    refuse(lake, InvalidInputError, "SHARED", f"DROP STREAM TABLE {table}")
    lake.run(f"DROP SHARED TABLE {table}; DROP TABLE IF EXISTS {table}")
    refuse(lake, NotFoundError, "no table", f"DROP TABLE {table}")


def test_a_table_with_more_columns_than_the_hot_store_can_hold_is_refused_when_made(lake: SqlLake, ns: str) -> None:
    columns = ", ".join(f"c{place} INT" for place in range(1_700))
    refuse(lake, InvalidInputError, "columns", f"CREATE SHARED TABLE {ns}.wide (id BIGINT PRIMARY KEY, {columns})")


def test_a_key_of_more_columns_than_the_hot_store_can_index_is_refused_when_made(lake: SqlLake, ns: str) -> None:
    names = [f"c{place}" for place in range(33)]
    columns = ", ".join(f"{name} INT" for name in names)
    refuse(
        lake, InvalidInputError, "key", f"CREATE SHARED TABLE {ns}.wide ({columns}, PRIMARY KEY ({', '.join(names)}))"
    )


@pytest.mark.parametrize(
    "policy",
    [
        "ROWS 0",
        "ROWS 10000001",
        "INTERVAL '0s'",
        "INTERVAL '31d'",
        "INTERVAL 'soon'",
        "INTERVAL '-5 minutes'",
        "ROWS 5 INTERVAL ''",
    ],
)
def test_flush_policies_out_of_bounds_are_refused(lake: SqlLake, ns: str, policy: str) -> None:
    refuse(lake, InvalidInputError, ".", f"CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY) FLUSH POLICY {policy}")


def test_a_flush_policy_of_rows_and_interval_holds_both(lake: SqlLake, ns: str) -> None:
    lake.run(
        f"CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY) FLUSH POLICY ROWS 5000 INTERVAL '1 minute' WITH (deleted_retention = 'off')"
    )
    described = {row[1]: row[2] for row in lake.rows(f"DESCRIBE TABLE {ns}.t")}
    assert described["flush_policy"] == "ROWS 5000 INTERVAL '1m'"
    assert described["deleted_retention"] == "off"
    lake.run(f"ALTER TABLE {ns}.t SET OPTIONS (deleted_retention = '30d'), SET FLUSH POLICY ROWS 10")
    described = {row[1]: row[2] for row in lake.rows(f"DESCRIBE TABLE {ns}.t")}
    assert (described["flush_policy"], described["deleted_retention"]) == ("ROWS 10", "30d")


@pytest.mark.parametrize("value", ["'soon'", "''", "'-1d'", "5", "true"])
def test_a_deleted_retention_that_is_no_duration_is_refused(lake: SqlLake, ns: str, value: str) -> None:
    refuse(
        lake,
        InvalidInputError,
        ".",
        f"CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY) WITH (deleted_retention = {value})",
    )


def test_the_default_of_a_column_cannot_make_two_rows_of_one(lake: SqlLake, ns: str) -> None:
    refuse(
        lake,
        InvalidInputError,
        ".",
        f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v INT DEFAULT unnest([1, 2]))",
    )


# Schema


def test_every_change_of_a_table_writes_schema_files_and_the_manifest(lake: SqlLake, ns: str, table: str) -> None:
    lake.run(
        f"ALTER TABLE {table} ADD COLUMN tags STRING[], ADD COLUMN p STRING DEFAULT 'normal'; ALTER TABLE {table} DROP COLUMN v"
    )
    lake.run(f"CREATE STREAM TABLE {ns}.s (x INT); CREATE USER TABLE {ns}.u (id UUID PRIMARY KEY)")
    schemas = configs(lake, ns) / "schemas"
    assert sorted(path.name for path in (schemas / "t").iterdir()) == [
        "current.json",
        "schema_v1.json",
        "schema_v2.json",
        "schema_v3.json",
    ]
    current = json.loads((schemas / "t" / "current.json").read_text())
    assert current == json.loads((schemas / "t" / "schema_v3.json").read_text())
    fields = {field["name"]: field for field in current["arrow_schema"]["fields"]}
    assert list(fields) == ["id", "n", "tags", "p", "_seq", "_deleted"]
    assert fields["p"]["metadata"]["default"] == "normal"
    assert fields["id"]["nullable"] is False
    assert {name for name, field in fields.items() if field["metadata"].get("system_column") == "true"} == {
        "_seq",
        "_deleted",
    }
    ids = [field["metadata"]["column_id"] for field in fields.values()]
    assert len(set(ids)) == len(ids)
    manifest = json.loads((configs(lake, ns) / "manifest.json").read_text())
    assert {name: (entry["current_version"], entry["table_type"]) for name, entry in manifest.items()} == {
        "t": (3, "shared"), "s": (1, "stream"), "u": (1, "user"),
    }  # fmt: skip
    assert all((configs(lake, ns) / entry["path"]).exists() for entry in manifest.values())
    assert manifest["t"]["created_at"] < manifest["t"]["updated_at"]


def test_a_dropped_table_is_no_longer_in_the_manifest_of_its_namespace(lake: SqlLake, ns: str, table: str) -> None:
    lake.run(f"CREATE USER TABLE {ns}.other (id BIGINT PRIMARY KEY); DROP TABLE {table.upper()}")
    assert list(json.loads((configs(lake, ns) / "manifest.json").read_text())) == ["other"]


def test_missing_and_corrupt_schema_files_are_written_again_from_the_catalog(
    lake: SqlLake, ns: str, table: str
) -> None:
    lake.run(f"ALTER TABLE {table} ADD COLUMN x INT; ALTER TABLE {table} RENAME COLUMN x TO y")
    files = sorted(configs(lake, ns).rglob("*.json"))
    before = {path: path.read_text() for path in files}
    schemas = configs(lake, ns) / "schemas" / "t"
    (schemas / "schema_v1.json").unlink()
    (schemas / "schema_v2.json").write_text("{ not json")
    (schemas / "current.json").unlink()
    (schemas / "current.json").symlink_to("schema_v99.json")
    (configs(lake, ns) / "manifest.json").write_text("\0")
    lake.run(f"INSERT INTO {table} (id, y) VALUES (1, 5)")
    assert lake.rows(f"SELECT id, y FROM {table}") == [(1, 5)]
    assert lake.engine.rewrite_schemas(lake.session()) >= 1
    assert {path: path.read_text() for path in sorted(configs(lake, ns).rglob("*.json"))} == before


def test_the_next_alter_heals_a_corrupt_manifest_and_current_schema(lake: SqlLake, ns: str, table: str) -> None:
    (configs(lake, ns) / "manifest.json").write_text("{")
    (configs(lake, ns) / "schemas" / "t" / "current.json").unlink()
    lake.run(f"ALTER TABLE {table} ADD COLUMN x INT")
    assert json.loads((configs(lake, ns) / "manifest.json").read_text())["t"]["current_version"] == 2
    assert json.loads((configs(lake, ns) / "schemas" / "t" / "current.json").read_text())["version"] == 2


def test_alter_holds_even_if_the_schema_files_cannot_be_written(lake: SqlLake, ns: str, table: str) -> None:
    root = configs(lake, ns)
    root.rename(root.with_name("aside"))
    root.write_text("in the way")
    try:
        lake.run(f"ALTER TABLE {table} ADD COLUMN x INT")
    finally:
        root.unlink()
        root.with_name("aside").rename(root)
    lake.run(f"INSERT INTO {table} (id, x) VALUES (1, 7)")
    assert lake.rows(f"SELECT x FROM {table}") == [(7,)]
    lake.engine.rewrite_schemas(lake.session())
    assert (root / "schemas" / "t" / "schema_v2.json").exists()


def test_an_alter_that_somebody_else_overtakes_gets_a_conflict(
    lake: SqlLake, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = lake.engine._tables
    find = tables._definition

    def overtaken(session: Any, statement: Any) -> Any:
        found = find(session, statement)
        monkeypatch.undo()
        lake.run(f"ALTER TABLE {table} ADD COLUMN first INT")
        return found

    monkeypatch.setattr(tables, "_definition", overtaken)
    refuse(lake, ConflictError, "somebody else", f"ALTER TABLE {table} ADD COLUMN second INT")
    names = [row[1] for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "column"]
    assert names == ["id", "v", "n", "first", "_seq", "_deleted"]


def test_of_many_concurrent_alters_each_wins_or_gets_a_conflict_and_files_agree_with_the_catalog(
    lake: SqlLake, ns: str, table: str
) -> None:
    def alter(place: int) -> bool:
        try:
            lake.run(f"ALTER TABLE {table} ADD COLUMN x{place} INT")
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = [place for place, done in enumerate(pool.map(alter, range(6))) if done]
    assert won
    columns = {row[1] for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "column"}
    assert columns == {"id", "v", "n", "_seq", "_deleted", *(f"x{place}" for place in won)}
    manifest = json.loads((configs(lake, ns) / "manifest.json").read_text())
    current = json.loads((configs(lake, ns) / "schemas" / "t" / "current.json").read_text())
    assert manifest["t"]["current_version"] == current["version"] == 1 + len(won)
    assert {field["name"] for field in current["arrow_schema"]["fields"]} == columns


def test_rows_written_while_the_table_is_altered_are_all_there(lake: SqlLake, table: str) -> None:
    stop = threading.Event()
    done: list[int] = []

    def write() -> None:
        for key in itertools.count():
            if stop.is_set():
                return
            assert lake.count(f"INSERT INTO {table} (id, v) VALUES (?, 'x')", key) == 1
            done.append(key)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for place in range(4):
            lake.run(f"ALTER TABLE {table} ADD COLUMN x{place} INT DEFAULT {place}")
            lake.run(f"ALTER TABLE {table} DROP COLUMN x{place}")
    finally:
        stop.set()
        writer.join()
    assert [row[0] for row in lake.rows(f"SELECT id FROM {table} ORDER BY id")] == done


@pytest.mark.parametrize(
    ("old", "new"),
    [("BIGINT", "INT"), ("INT", "SMALLINT"), ("BIGINT", "DOUBLE"), ("INT", "FLOAT"), ("STRING", "INT"), ("INT", "STRING"), ("DOUBLE", "FLOAT"),
     ("DECIMAL(10,2)", "DECIMAL(10,3)"), ("DECIMAL(10,2)", "DECIMAL(9,2)"), ("BIGINT", "DECIMAL(18,0)"), ("TIMESTAMP", "TIMESTAMPTZ"),
     ("DATE", "TIMESTAMP"), ("BYTES", "STRING"), ("JSON", "STRING"), ("BIGINT", "BIGINT[]")],
)  # fmt: skip
def test_a_column_cannot_be_narrowed_or_change_its_meaning(lake: SqlLake, ns: str, old: str, new: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v {old})")
    refuse(lake, InvalidInputError, "safe", f"ALTER TABLE {ns}.t MODIFY COLUMN v {new}")


@pytest.mark.parametrize(
    ("old", "new", "value", "wide"),
    [("SMALLINT", "BIGINT", -32768, 2**40), ("INT", "DOUBLE", 2**31 - 1, 1e300), ("FLOAT", "DOUBLE", 0.5, 1e300), ("SMALLINT", "FLOAT", 7, 0.5),
     ("DECIMAL(4,2)", "DECIMAL(38,4)", Decimal("99.99"), Decimal("123456789.1234")), ("BIGINT", "DECIMAL(38,2)", 2**63 - 1, Decimal("10000000000000000000000.25"))],
)  # fmt: skip
def test_a_widened_column_keeps_hot_rows_batches_and_defaults(
    lake: SqlLake, ns: str, old: str, new: str, value: Any, wide: Any
) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v {old} DEFAULT 1)")
    lake.run(f"INSERT INTO {ns}.t VALUES (1, ?)", value)
    lake.flush_by_hand(f"{ns}.t")
    lake.run(f"INSERT INTO {ns}.t VALUES (2, ?)", value)
    lake.run(f"ALTER TABLE {ns}.t MODIFY COLUMN v {new}")
    lake.run(f"INSERT INTO {ns}.t VALUES (3, ?)", wide)
    lake.run(f"INSERT INTO {ns}.t (id) VALUES (4)")
    assert lake.count(f"UPDATE {ns}.t SET v = v WHERE id = 1 OR v > 100000000") >= 1
    assert lake.rows(f"SELECT v FROM {ns}.t ORDER BY id") == [(value,), (value,), (wide,), (1,)]
    lake.flush_by_hand(f"{ns}.t")
    assert lake.rows(f"SELECT v FROM {ns}.t ORDER BY id") == [(value,), (value,), (wide,), (1,)]


@pytest.mark.parametrize("flushed", [False, True])
def test_an_added_column_is_null_or_its_default_in_older_rows(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    if flushed:
        lake.flush_by_hand(table)
    lake.run(
        f"ALTER TABLE {table} ADD COLUMN plain STRING, ADD COLUMN p STRING NOT NULL DEFAULT 'it''s', ADD COLUMN k INT DEFAULT 5"
    )
    lake.run(f"INSERT INTO {table} (id) VALUES (2)")
    assert lake.rows(f"SELECT id, plain, p, k FROM {table} ORDER BY id") == [(1, None, "it's", 5), (2, None, "it's", 5)]
    lake.run(f"ALTER TABLE {table} MODIFY COLUMN k INT DEFAULT 6")
    lake.run(f"INSERT INTO {table} (id) VALUES (3)")
    assert lake.rows(f"SELECT id, k FROM {table} ORDER BY id") == [(1, 5), (2, 5), (3, 6)]
    assert lake.rows(f"SELECT id FROM {table} WHERE k = 5 AND p = 'it''s' ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_renamed_column_keeps_its_values_and_the_old_name_is_gone(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    if flushed:
        lake.flush_by_hand(table)
    lake.run(f"ALTER TABLE {table} RENAME COLUMN v TO text, RENAME COLUMN id TO key")
    assert lake.rows(f"SELECT key, text FROM {table} WHERE key = 1") == [(1, "a")]
    refuse(lake, InvalidInputError, "v", f"SELECT v FROM {table}")
    refuse(lake, ConflictError, "exists", f"INSERT INTO {table} VALUES (1, 'x', 1)")
    assert lake.count(f"UPDATE {table} SET n = n + 1 WHERE key = 1") == 1
    assert lake.rows(f"SELECT * EXCLUDE (_seq, _deleted) FROM {table}") == [(1, "a", 2)]


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_dropped_and_added_name_does_not_show_old_values(
    lake: SqlLake, table: str, flushed: bool, at_once: bool
) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'secret', 1)")
    if flushed:
        lake.flush_by_hand(table)
    if at_once:
        lake.run(f"ALTER TABLE {table} DROP COLUMN v, ADD COLUMN v STRING")
    else:
        lake.run(f"ALTER TABLE {table} DROP COLUMN v; ALTER TABLE {table} ADD COLUMN v STRING")
    assert lake.rows(f"SELECT id, v FROM {table}") == [(1, None)]
    lake.run(f"UPDATE {table} SET v = 'new' WHERE id = 1")
    assert lake.rows(f"SELECT id, v, n FROM {table}") == [(1, "new", 1)]


def test_a_column_that_is_added_and_dropped_quickly_leaves_no_trace_and_its_id_is_not_reused(
    lake: SqlLake, ns: str, table: str
) -> None:
    for _ in range(3):
        lake.run(f"ALTER TABLE {table} ADD COLUMN x INT DEFAULT 1; ALTER TABLE {table} DROP COLUMN x")
    lake.run(f"ALTER TABLE {table} ADD COLUMN x INT")
    refuse(lake, InvalidInputError, "nothing to change", f"ALTER TABLE {table} ADD COLUMN y INT, DROP COLUMN y")
    lake.run(f"INSERT INTO {table} (id) VALUES (1)")
    assert lake.rows(f"SELECT x FROM {table}") == [(None,)]
    ids = []
    for version in range(1, 9):
        file = configs(lake, ns) / "schemas" / "t" / f"schema_v{version}.json"
        fields = json.loads(file.read_text())["arrow_schema"]["fields"]
        ids += [int(field["metadata"]["column_id"]) for field in fields if field["name"] == "x"]
    assert len(ids) == len(set(ids)) == 4


def test_a_key_column_cannot_be_dropped_or_modified_and_the_last_column_stays(
    lake: SqlLake, ns: str, table: str
) -> None:
    refuse(lake, InvalidInputError, "key", f"ALTER TABLE {table} DROP COLUMN id")
    refuse(lake, InvalidInputError, "key", f"ALTER TABLE {table} MODIFY COLUMN id DECIMAL(38, 0)")
    refuse(lake, InvalidInputError, "no column", f"ALTER TABLE {table} DROP COLUMN nope")
    refuse(lake, InvalidInputError, "already", f"ALTER TABLE {table} ADD COLUMN V INT")
    refuse(lake, InvalidInputError, "DEFAULT", f"ALTER TABLE {table} ADD COLUMN x INT NOT NULL")
    refuse(lake, InvalidInputError, "NULL", f"ALTER TABLE {table} MODIFY COLUMN n INT NOT NULL")
    # all or nothing
    refuse(lake, InvalidInputError, "no column", f"ALTER TABLE {table} ADD COLUMN x INT, DROP COLUMN nope")
    assert len([row for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "version"]) == 1


def test_old_batches_are_read_after_many_versions(lake: SqlLake, table: str) -> None:
    for place in range(5):
        lake.run(f"INSERT INTO {table} (id, v) VALUES ({place}, 'v{place}')")
        lake.flush_by_hand(table)
        lake.run(f"ALTER TABLE {table} ADD COLUMN x{place} INT DEFAULT {place}")
    lake.run(f"ALTER TABLE {table} RENAME COLUMN v TO w, DROP COLUMN x0, DROP COLUMN n, RENAME COLUMN x1 TO x0")
    expected = [(place, f"v{place}", 1, 2, 3, 4) for place in range(5)]
    assert lake.rows(f"SELECT id, w, x0, x2, x3, x4 FROM {table} ORDER BY id") == expected
    assert lake.count(f"UPDATE {table} SET x4 = NULL WHERE w = 'v0'") == 1
    assert lake.rows(f"SELECT * EXCLUDE (_seq, _deleted) FROM {table} WHERE id = 0") == [(0, "v0", 1, 2, 3, None)]


def test_describe_shows_hundreds_of_versions(lake: SqlLake, table: str) -> None:
    for _ in range(50):
        lake.run(f"ALTER TABLE {table} ADD COLUMN x INT; ALTER TABLE {table} DROP COLUMN x")
    versions = [row for row in lake.rows(f"DESCRIBE TABLE {table}") if row[0] == "version"]
    assert [row[1] for row in versions] == [f"v{number}" for number in range(1, 102)]
    assert versions[100][2].endswith("schema_v101.json")
    described = {row[1]: row[2] for row in lake.rows(f"DESCRIBE TABLE {table}")}
    assert described["current_version"] == "101"


def test_time_travel_reads_files_and_definition_as_they_were(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'first', 1)")
    lake.flush_by_hand(table)
    first = newest_snapshot(lake)
    lake.run(f"UPDATE {table} SET v = 'second' WHERE id = 1; INSERT INTO {table} VALUES (2, 'other', 2)")
    assert lake.rows(f"SELECT id, v FROM {table} AT (VERSION => {first})") == [(1, "first")]
    lake.flush_by_hand(table)
    lake.run(f"ALTER TABLE {table} RENAME COLUMN v TO w, DROP COLUMN n; DELETE FROM {table} WHERE id = 1")
    lake.flush_by_hand(table)
    assert lake.rows(f"SELECT id, v, n FROM {table} AT (VERSION => {first})") == [(1, "first", 1)]
    assert lake.rows(f"SELECT id, w FROM {table}") == [(2, "other")]
    now = newest_snapshot(lake)
    assert lake.rows(f"SELECT id, w FROM {table} AT (VERSION => ?)", now) == [(2, "other")]
    assert lake.rows(f"SELECT id, w FROM {table} AT (TIMESTAMP => now())") == [(2, "other")]
    lake.run(f"DROP TABLE {table}")
    assert lake.rows(f"SELECT id, v, n FROM {table} AT (VERSION => {first})") == [(1, "first", 1)]
    refuse(lake, NotFoundError, "snapshot", f"SELECT * FROM {table} AT (VERSION => 999999999)")
    refuse(lake, NotFoundError, "snapshot", f"SELECT * FROM {table} AT (TIMESTAMP => '1999-01-01')")


# Rows


@pytest.mark.parametrize("flushed", [False, True])
def test_a_duplicate_key_is_refused_and_nothing_is_written(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2)")
    if flushed:
        lake.flush_by_hand(table)
    refuse(lake, ConflictError, "id = 2", f"INSERT INTO {table} VALUES (3, 'c', 3), (2, 'x', 2)")
    refuse(lake, ConflictError, "twice", f"INSERT INTO {table} VALUES (4, 'c', 3), (4, 'x', 2)")
    refuse(lake, ConflictError, "exists", f"INSERT INTO {table} SELECT id, v, n FROM {table}")
    assert lake.rows(f"SELECT id, v FROM {table} ORDER BY id") == [(1, "a"), (2, "b")]


KEYS: dict[str, tuple[Any, Any]] = {
    "SMALLINT": (-1, 1),
    "DECIMAL(20, 3)": (Decimal("-0.001"), Decimal("99999999999999999.999")),
    "BOOLEAN": (False, True),
    "STRING": ("", "ü🦆'\\"),
    "BYTES": (b"", b"\x00\xff'"),
    "DATE": (datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    "TIME": (datetime.time(0), datetime.time(23, 59, 59, 999999)),
    "TIMESTAMP": (datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "TIMESTAMPTZ": (
        datetime.datetime(1969, 12, 31, 23, tzinfo=datetime.UTC),
        datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC),
    ),
    "UUID": (uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_found_in_hot_rows_and_batches(lake: SqlLake, ns: str, kind: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (k {kind} PRIMARY KEY, v STRING)")
    one, two = KEYS[kind]
    lake.run(f"INSERT INTO {ns}.t VALUES (?, 'a'), (?, 'b')", one, two)
    for _ in range(2):
        for key in (one, two):
            refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t VALUES (?, 'x')", key)
        assert lake.count(f"UPDATE {ns}.t SET v = v || '!' WHERE k = ?", one) == 1
        assert lake.count(f"DELETE FROM {ns}.t WHERE k = ?", two) == 1
        assert lake.count(f"DELETE FROM {ns}.t WHERE k = ?", two) == 0
        assert lake.count(f"INSERT INTO {ns}.t VALUES (?, 'b')", two) == 1
        lake.flush_by_hand(f"{ns}.t")
    assert lake.rows(f"SELECT k, v FROM {ns}.t WHERE k = ?", one) == [(one, "a!!")]
    assert lake.rows(f"SELECT k, v FROM {ns}.t ORDER BY v") == [(one, "a!!"), (two, "b")]


def test_a_composite_key_tells_rows_apart_by_all_its_columns(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (a STRING, b BIGINT, v STRING, PRIMARY KEY (b, a))")
    lake.run(f"INSERT INTO {ns}.t VALUES ('x', 1, '1'), ('x', 2, '2'), ('y', 1, '3')")
    lake.flush_by_hand(f"{ns}.t")
    refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t VALUES ('y', 1, '?')")
    refuse(lake, InvalidInputError, "NULL", f"INSERT INTO {ns}.t (a, v) VALUES ('z', '?')")
    assert lake.count(f"INSERT INTO {ns}.t VALUES ('y', 2, '4')") == 1
    assert lake.count(f"UPDATE {ns}.t SET v = 'u' WHERE a IN ('x', 'y') AND b IN (1)") == 2
    assert lake.count(f"DELETE FROM {ns}.t WHERE a = 'x' AND b = 2") == 1
    assert lake.rows(f"SELECT a, b, v FROM {ns}.t ORDER BY a, b") == [("x", 1, "u"), ("y", 1, "u"), ("y", 2, "4")]
    refuse(lake, InvalidInputError, "key", f"UPDATE {ns}.t SET a = 'q' WHERE b = 1")


def test_many_keys_are_checked_against_hot_rows_and_batches(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (k STRING PRIMARY KEY, n INT)")
    lake.run(f"INSERT INTO {ns}.t SELECT 'k' || i, i FROM range(0, 2000, 2) r(i)")
    lake.flush_by_hand(f"{ns}.t")
    refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t SELECT 'k' || i, i FROM range(1001, 1502) r(i)")
    assert lake.count(f"INSERT INTO {ns}.t SELECT 'k' || i, i FROM range(1, 1001, 2) r(i)") == 500
    refuse(lake, ConflictError, "exists", f"INSERT INTO {ns}.t SELECT 'k' || i, i FROM range(1, 2000, 2) r(i)")
    assert lake.count(f"UPDATE {ns}.t SET n = n + 1") == 1500
    assert lake.count(f"DELETE FROM {ns}.t WHERE n % 2 = 0") == 500
    assert lake.rows(f"SELECT count(*), sum(n)::BIGINT FROM {ns}.t") == [(1000, sum(range(0, 2000, 2)) + 1000)]


@pytest.mark.parametrize("flushed", [False, True])
def test_update_and_delete_keep_the_columns_that_they_do_not_name(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 10), (2, 'b', 20), (3, NULL, NULL)")
    if flushed:
        lake.flush_by_hand(table)
    assert lake.count(f"UPDATE {table} SET n = n + 1 WHERE v = 'a' OR n IS NULL") == 2
    assert lake.count(f"DELETE FROM {table} WHERE n = 20") == 1
    assert lake.rows(f"SELECT id, v, n FROM {table} ORDER BY id") == [(1, "a", 11), (3, None, None)]
    assert lake.rows(f"SELECT id, v, n, _deleted FROM {table} WHERE _deleted") == [(2, "b", 20, True)]


def test_three_updates_each_flushed_give_one_row_with_the_last_value(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'v0', 0)")
    lake.flush_by_hand(table)
    seqs = [lake.rows(f"SELECT _seq FROM {table}")[0][0]]
    for number in range(1, 4):
        assert lake.count(f"UPDATE {table} SET v = 'v{number}' WHERE v = 'v{number - 1}'") == 1
        assert lake.count(f"UPDATE {table} SET n = {number} WHERE v = 'v{number - 1}'") == 0
        lake.flush_by_hand(table)
        assert lake.rows(f"SELECT id, v, n FROM {table}") == [(1, f"v{number}", 0)]
        seqs += [row[0] for row in lake.rows(f"SELECT _seq FROM {table}")]
    assert seqs == sorted(set(seqs))
    for old in ("v = 'v0'", f"_seq = {seqs[0]}", f"_seq < {seqs[3]}", "v IN ('v1', 'v2')"):
        assert lake.rows(f"SELECT * FROM {table} WHERE {old}") == []


def test_a_row_with_a_hundred_versions_is_one_row(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 0)")
    for _ in range(100):
        assert lake.count(f"UPDATE {table} SET n = n + 1 WHERE id = 1") == 1
    assert lake.rows(f"SELECT id, n FROM {table}") == [(1, 100)]


@pytest.mark.parametrize("flushed", [False, True])
def test_concurrent_updates_of_one_row_lose_nothing(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 0)")
    if flushed:
        lake.flush_by_hand(table)

    def update(_: int) -> int:
        return lake.count(f"UPDATE {table} SET n = n + 1 WHERE v = 'a'")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(update, range(24))) == [1] * 24
    assert lake.rows(f"SELECT n FROM {table}") == [(24,)]


def test_of_concurrent_inserts_of_one_key_exactly_one_succeeds(lake: SqlLake, table: str) -> None:
    def insert(place: int) -> int:
        try:
            return lake.count(f"INSERT INTO {table} VALUES (?, 'x', ?)", place % 3, place)
        except ConflictError:
            return 0

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(insert, range(24))) == 3
    assert lake.rows(f"SELECT id FROM {table} ORDER BY id") == [(0,), (1,), (2,)]


def test_an_update_that_would_make_two_rows_of_one_is_refused(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 0)")
    refuse(lake, InvalidInputError, ".", f"UPDATE {table} SET n = unnest([1, 2]) WHERE id = 1")
    refuse(lake, InvalidInputError, ".", f"UPDATE {table} SET n = (SELECT i FROM range(2) r(i)) WHERE id = 1")
    assert lake.rows(f"SELECT id, n FROM {table}") == [(1, 0)]


def test_update_can_set_a_column_to_its_default(lake: SqlLake, ns: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v STRING DEFAULT 'd', n INT)")
    lake.run(f"INSERT INTO {ns}.t VALUES (1, 'a', 1), (2, DEFAULT, 2)")
    assert lake.count(f"UPDATE {ns}.t SET v = DEFAULT, n = DEFAULT WHERE id = 1") == 1
    assert lake.rows(f"SELECT id, v, n FROM {ns}.t ORDER BY id") == [(1, "d", None), (2, "d", 2)]


@pytest.mark.parametrize(
    "query", ["SELECT b FROM {t} AS x (a, b)", "SELECT b FROM (SELECT * FROM {t}) AS x (a, b)", "SELECT x.v FROM {t} x"]
)
def test_columns_that_are_renamed_by_the_alias_of_a_table_are_the_right_ones(
    lake: SqlLake, table: str, query: str
) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 7)")
    assert lake.rows(query.format(t=table)) == [("a",)]


def test_a_whole_row_has_all_its_columns(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 7)")
    (row,) = lake.rows(f"SELECT to_json(x)::VARCHAR FROM {table} x")
    assert {key: value for key, value in json.loads(row[0]).items() if not key.startswith("_")} == {
        "id": 1,
        "v": "a",
        "n": 7,
    }


def test_update_and_delete_understand_when_a_row_was_updated(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 7)")
    assert lake.rows(f"SELECT id FROM {table} WHERE {UPDATED} > now() - INTERVAL 1 HOUR") == [(1,)]
    assert lake.count(f"DELETE FROM {table} WHERE {UPDATED} < now() - INTERVAL 1 HOUR") == 0
    assert lake.count(f"DELETE FROM {table} WHERE {UPDATED} > now() - INTERVAL 1 HOUR") == 1


def test_a_sum_of_whole_numbers_is_a_number(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 7), (2, 'b', 8)")
    assert lake.rows(f"SELECT sum(n), sum(id), avg(n) FROM {table}") == [(15, 3, 7.5)]
    assert lake.run(f"SELECT sum(id) FROM {table}")[0].as_json()["rows"] == [[3]]


# Soft deletes


@pytest.mark.parametrize("flushed", [False, True])
def test_an_update_or_second_delete_of_a_deleted_row_changes_nothing(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2)")
    assert lake.count(f"DELETE FROM {table} WHERE id = 1") == 1
    if flushed:
        lake.flush_by_hand(table)
    for where in ("id = 1", "v = 'a'", "_deleted", "id = 1 AND _deleted"):
        assert lake.count(f"UPDATE {table} SET v = 'x' WHERE {where}") == 0
        assert lake.count(f"DELETE FROM {table} WHERE {where}") == 0
    assert lake.count(f"UPDATE {table} SET v = 'x' WHERE id = 99") == 0
    assert lake.rows(f"SELECT id, v FROM {table}") == [(2, "b")]


def test_a_deleted_row_stays_hidden_when_the_delete_is_flushed_after_the_row(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1)")
    lake.flush_by_hand(table)
    assert lake.count(f"DELETE FROM {table} WHERE v = 'a'") == 1
    assert lake.rows(f"SELECT * FROM {table}") == []
    assert lake.flush_by_hand(table) == 1
    assert lake.rows(f"SELECT * FROM {table}") == []
    assert lake.rows(f"SELECT * FROM {table} WHERE id = 1") == []
    assert lake.rows(f"SELECT count(*) FROM {table}") == [(0,)]


@pytest.mark.parametrize("flushed", [False, True])
def test_deleted_rows_are_seen_where_deleted_is_named(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2); DELETE FROM {table} WHERE id = 1")
    if flushed:
        lake.flush_by_hand(table)
    assert lake.rows(f"SELECT id FROM {table}") == [(2,)]
    assert lake.rows(f"SELECT id, _deleted FROM {table}") == [(2, False)]
    assert lake.rows(f"SELECT id FROM {table} WHERE _deleted") == [(1,)]
    assert lake.rows(f"SELECT id FROM {table} t WHERE t._deleted = true AND v = 'a'") == [(1,)]
    assert lake.rows(f"SELECT id FROM {table} WHERE _deleted OR NOT _deleted ORDER BY id") == [(1,), (2,)]
    assert lake.rows(f"SELECT id FROM {table} WHERE NOT _deleted") == [(2,)]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_row_inserted_again_after_its_delete_is_newer(lake: SqlLake, table: str, flushed: bool) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1); DELETE FROM {table} WHERE id = 1")
    if flushed:
        lake.flush_by_hand(table)
    deleted = lake.rows(f"SELECT _seq FROM {table} WHERE _deleted")[0][0]
    assert lake.count(f"INSERT INTO {table} VALUES (1, 'b', NULL)") == 1
    ((seq, v, n),) = lake.rows(f"SELECT _seq, v, n FROM {table}")
    assert (v, n) == ("b", None)
    assert seq > deleted
    lake.flush_by_hand(table)
    assert lake.rows(f"SELECT v FROM {table}") == [("b",)]
    refuse(lake, ConflictError, "exists", f"INSERT INTO {table} VALUES (1, 'c', 1)")


@pytest.mark.parametrize("form", ["{seq}", "'{seq}'", "{seq} + 0", "CAST('{seq}' AS BIGINT)", "?"])
def test_changes_since_a_seq_show_deleted_rows_however_the_seq_is_written(lake: SqlLake, table: str, form: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2)")
    seq = max(row[0] for row in lake.rows(f"SELECT _seq FROM {table}"))
    lake.run(f"DELETE FROM {table} WHERE id = 1; UPDATE {table} SET v = 'c' WHERE id = 2")
    parameters = [str(seq)] if form == "?" else []
    found = lake.rows(
        f"SELECT id, v, _deleted FROM {table} WHERE _seq > {form.format(seq=seq)} ORDER BY id", *parameters
    )
    assert found == [(1, "a", True), (2, "c", False)]


# Permissions


def test_a_user_without_a_row_in_system_users_has_own_rows_and_no_shared_table(
    lake: SqlLake, table: str, user_table: str
) -> None:
    assert lake.count(f"INSERT INTO {user_table} VALUES (1, 'mine')", user="stranger") == 1
    assert lake.rows(f"SELECT id, v FROM {user_table}", user="stranger") == [(1, "mine")]
    for text in (f"SELECT * FROM {table}", f"INSERT INTO {table} VALUES (1, 'a', 1)", f"UPDATE {table} SET n = 1", f"DELETE FROM {table}",
                 f"DESCRIBE TABLE {table}", f"SHOW TABLE STATS {table}", f"EXPLAIN SELECT * FROM {table}"):  # fmt: skip
        refuse(lake, PermissionDeniedError, "no rule", text, user="stranger")
    assert lake.rows("SELECT * FROM system.users", user="stranger") == []
    listed = lake.rows(f"SHOW TABLES IN {table.split('.')[0]}", user="stranger")
    assert [row[1] for row in listed] == ["mine"]


def test_current_user_without_a_user_is_refused(lake: SqlLake, table: str, user_table: str) -> None:
    for text in (
        f"SELECT * FROM {table}",
        f"SELECT * FROM {user_table}",
        "SELECT CURRENT_USER()",
        "SELECT current_user",
    ):
        refuse(lake, InvalidInputError, "needs a user", text, role=Role.USER)
    refuse(lake, InvalidInputError, "needs a user", f"INSERT INTO {user_table} VALUES (1, 'a')", role=Role.ADMIN)
    assert lake.rows("SELECT CURRENT_USER(), current_user", user="it's") == [("it's", "it's")]


def test_a_pattern_of_a_namespace_does_not_match_another_that_starts_alike(lake: SqlLake, ns: str, table: str) -> None:
    lake.run(
        f"CREATE NAMESPACE {ns}x; CREATE SHARED TABLE {ns}x.t (id BIGINT PRIMARY KEY); CREATE SHARED TABLE {ns}.t2 (id BIGINT PRIMARY KEY)"
    )
    user = add_user(lake, f"{ns}.*")
    assert lake.rows(f"SELECT id FROM {table}", user=user) == []
    assert lake.rows(f"SELECT id FROM {ns}.t2", user=user) == []
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT id FROM {ns}x.t", user=user)
    exact = add_user(lake, f"{ns}.t")
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT id FROM {ns}.t2", user=exact)
    inner = add_user(lake, f"{ns[1:]}.*", "s*.t", f"{ns}.T")
    assert lake.rows(f"SELECT id FROM {table}", user=inner) == []
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT id FROM {ns}.t2", user=inner)


def test_overlapping_rules_allow_what_one_of_them_allows(lake: SqlLake, table: str) -> None:
    lake.run(f"INSERT INTO {table} VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (4, NULL, NULL)")
    two = add_user(lake, f"{table}.v = 'a'", f"{table}.n > 2", f"{table}.nope = 1")
    assert lake.rows(f"SELECT id FROM {table} ORDER BY id", user=two) == [(1,), (3,)]
    everything = add_user(lake, f"{table}.v = 'a'", f"{table.split('.')[0]}.*")
    assert lake.rows(f"SELECT count(*) FROM {table}", user=everything) == [(4,)]
    negated = add_user(lake, f"{table}.v <> 'a'")
    assert lake.rows(f"SELECT id FROM {table} ORDER BY id", user=negated) == [(2,), (3,)]


def test_a_revoked_permission_holds_at_once(lake: SqlLake, table: str) -> None:
    user = add_user(lake, table)
    insert = f"INSERT INTO {table} (v) VALUES ('x')"
    for _ in range(3):
        assert lake.count(insert, user=user) == 1
    assert lake.rows(f"SELECT count(*) FROM {table}", user=user) == [(3,)]
    lake.run(f"UPDATE system.users SET permissions = [] WHERE user_id = '{user}'")
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT count(*) FROM {table}", user=user)
    refuse(lake, PermissionDeniedError, "no rule", insert, user=user)


def test_a_row_filter_holds_for_the_old_and_the_new_row(lake: SqlLake, table: str) -> None:
    user = add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"INSERT INTO {table} VALUES (1, ?, 1), (2, 'other', 2), (3, NULL, 3)", user)
    for _ in range(2):
        assert lake.rows(f"SELECT id FROM {table}", user=user) == [(1,)]
        assert lake.count(f"UPDATE {table} SET n = n + 1", user=user) == 1
        assert lake.count(f"UPDATE {table} SET n = 0 WHERE id = 2", user=user) == 0
        assert lake.count(f"DELETE FROM {table} WHERE id IN (2, 3)", user=user) == 0
        refuse(lake, PermissionDeniedError, "outside", f"UPDATE {table} SET v = 'other' WHERE id = 1", user=user)
        refuse(lake, PermissionDeniedError, "outside", f"INSERT INTO {table} VALUES (9, 'other', 1)", user=user)
        refuse(
            lake,
            PermissionDeniedError,
            "outside",
            f"INSERT INTO {table} VALUES (8, CURRENT_USER(), 1), (9, NULL, 1)",
            user=user,
        )
        lake.flush_by_hand(table)
    assert lake.rows(f"SELECT id, n FROM {table} ORDER BY id") == [(1, 3), (2, 2), (3, 3)]


def test_a_row_that_was_handed_over_is_seen_by_its_new_owner_only(lake: SqlLake, table: str) -> None:
    one, two = add_user(lake, f"{table}.v = CURRENT_USER()"), add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"INSERT INTO {table} VALUES (1, ?, 1)", one)
    lake.flush_by_hand(table)
    assert lake.count(f"UPDATE {table} SET v = ? WHERE id = 1", two) == 1
    for who, expected in ((one, []), (two, [(1,)])):
        assert lake.rows(f"SELECT id FROM {table}", user=who) == expected
        assert lake.rows(f"SELECT id FROM {table} WHERE _seq > 0", user=who) == expected
        assert lake.count(f"UPDATE {table} SET n = n WHERE id = 1", user=who) == len(expected)


def test_a_rule_on_a_renamed_or_dropped_column_allows_nothing_more(lake: SqlLake, table: str) -> None:
    user = add_user(lake, f"{table}.v = CURRENT_USER()")
    lake.run(f"INSERT INTO {table} VALUES (1, 'other', 1)")
    lake.run(f"ALTER TABLE {table} RENAME COLUMN v TO w")
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT * FROM {table}", user=user)
    lake.run(f"ALTER TABLE {table} DROP COLUMN w")
    refuse(lake, PermissionDeniedError, "no rule", f"SELECT * FROM {table}", user=user)


def test_a_table_that_rules_name_can_be_dropped_and_made_anew(lake: SqlLake, table: str) -> None:
    user = add_user(lake, table)
    lake.run(f"DROP TABLE {table}")
    refuse(lake, NotFoundError, "no table", f"SELECT * FROM {table}", user=user)
    lake.run(f"CREATE SHARED TABLE {table} (id BIGINT PRIMARY KEY)")
    assert lake.rows(f"SELECT id FROM {table}", user=user) == []


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "x",
        "a.b.c",
        "a.b.c = (SELECT 1)",
        "a.b.c = getenv('HOME')",
        "a.b.c = other",
        "a.b.*.d",
        "*.*.* = 1",
        "a.b.c = 1; DROP",
        "a.b.c IN (SELECT 1)",
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_when_it_is_given(lake: SqlLake, user: str, rule: str) -> None:
    refuse(lake, InvalidInputError, ".", "INSERT INTO system.users (user_id, permissions) VALUES ('never', ?)", [rule])
    refuse(lake, InvalidInputError, ".", f"UPDATE system.users SET permissions = [?] WHERE user_id = '{user}'", rule)
    assert lake.rows(f"SELECT permissions FROM system.users WHERE user_id IN ('{user}', 'never')") == [([],)]


@pytest.mark.parametrize("role", ["root", "", "Admin", "USER"])
def test_a_role_that_does_not_exist_is_refused_or_understood(lake: SqlLake, role: str) -> None:
    name = f"user{next(_numbers)}"
    try:
        lake.run("INSERT INTO system.users (user_id, role) VALUES (?, ?)", name, role)
    except InvalidInputError:
        assert lake.rows(f"SELECT * FROM system.users WHERE user_id = '{name}'") == []
    else:
        assert lake.rows(f"SELECT role FROM system.users WHERE user_id = '{name}'") == [(role.lower(),)]


def test_parameters_of_a_change_of_system_users_are_counted_through_the_statement(lake: SqlLake, user: str) -> None:
    other = add_user(lake)
    lake.run("UPDATE system.users SET username = ?, role = ? WHERE user_id = ?", "Ann", "service", user)
    found = lake.rows(
        f"SELECT user_id, username, role FROM system.users WHERE user_id IN ('{user}', '{other}') ORDER BY username"
    )
    assert found == [(user, "Ann", "service"), (other, None, "user")]
    assert lake.count("DELETE FROM system.users WHERE user_id = ? AND role = ?", user, "service") == 1


def test_a_deleted_user_may_do_nothing_whatever_the_role_was(lake: SqlLake, table: str, user_table: str) -> None:
    user = add_user(lake, table)
    insert = f"INSERT INTO {user_table} (v) VALUES ('x')"
    for _ in range(2):
        assert lake.count(insert, user=user) == 1
    assert lake.count(f"DELETE FROM system.users WHERE user_id = '{user}'") == 1
    assert lake.count(f"DELETE FROM system.users WHERE user_id = '{user}'") == 0
    for text in (
        insert,
        f"SELECT * FROM {user_table}",
        f"SELECT * FROM {table}",
        f"DELETE FROM {user_table}",
        f"INSERT INTO {table} (v) VALUES ('x')",
    ):
        refuse(lake, PermissionDeniedError, "deleted", text, user=user)
    boss = add_user(lake, role="admin")
    assert lake.engine.role_of("main", boss) is Role.ADMIN
    lake.run(f"DELETE FROM system.users WHERE user_id = '{boss}'")
    try:
        role = lake.engine.role_of("main", boss)
    except LakeforkError:
        return
    assert role is Role.USER


def test_users_see_own_rows_only_and_services_all(lake: SqlLake, user_table: str) -> None:
    for name in ("a", "b"):
        lake.run(f"INSERT INTO {user_table} VALUES (1, ?)", name, user=name)
    lake.flush_by_hand(user_table, "a")
    for name in ("a", "b"):
        assert lake.rows(f"SELECT id, v FROM {user_table}", user=name) == [(1, name)]
        assert lake.count(f"UPDATE {user_table} SET v = v || '!'", user=name) == 1
    assert lake.rows(f"SELECT _user_id, v FROM {user_table} ORDER BY 1", role=Role.SERVICE) == [
        ("a", "a!"),
        ("b", "b!"),
    ]
    assert len(lake.run(f"SELECT * FROM {user_table}", role=Role.SERVICE)[0].columns) == 4
    assert lake.rows(f"SELECT count(*) FROM {user_table} WHERE _user_id = 'a'", role=Role.SERVICE) == [(1,)]


# Storage locations


@pytest.fixture
def location(lake: SqlLake, tmp_path: Path) -> str:
    name = f"place{next(_numbers)}"
    lake.run(
        "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES (?, 'filesystem', ?)",
        name,
        str(tmp_path / "one"),
    )
    return name


def test_a_duplicate_location_name_is_refused(lake: SqlLake, location: str, tmp_path: Path) -> None:
    insert = "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES (?, 'filesystem', ?)"
    refuse(lake, ConflictError, "already", insert, location, str(tmp_path / "two"))
    assert lake.rows(f"SELECT path FROM system.storage_locations WHERE location_name = '{location}'") == [
        (str(tmp_path / "one"),)
    ]


def test_a_reference_to_a_location_that_is_not_there_is_refused(lake: SqlLake, ns: str) -> None:
    refuse(
        lake,
        NotFoundError,
        "nowhere",
        f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY) LOCATION REFERENCE 'nowhere'",
    )
    refuse(lake, NotFoundError, "no table", f"SELECT * FROM {ns}.t")


def test_a_location_in_use_cannot_be_deleted_and_the_error_names_its_tables(
    lake: SqlLake, ns: str, location: str
) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY) LOCATION REFERENCE '{location}'")
    delete = f"DELETE FROM system.storage_locations WHERE location_name = '{location}'"
    assert f"{ns}.t" in refuse(lake, ConflictError, location, delete)
    used = f"SELECT usage_count, used_by FROM system.storage_locations WHERE location_name = '{location}'"
    assert lake.rows(used) == [(1, [f"{ns}.t"])]
    lake.run(f"DROP TABLE {ns}.t")
    assert lake.rows(used) == [(0, [])]
    assert lake.count(delete) == 1


def test_a_changed_location_path_holds_for_new_tables_only(
    lake: SqlLake, ns: str, location: str, tmp_path: Path
) -> None:
    create = f"CREATE SHARED TABLE {ns}.{{}} (id BIGINT PRIMARY KEY) LOCATION REFERENCE '{location}'"
    lake.run(create.format("old"))
    lake.run(f"INSERT INTO {ns}.old VALUES (1)")
    lake.flush_by_hand(f"{ns}.old")
    lake.run(f"UPDATE system.storage_locations SET path = '{tmp_path}/two' WHERE location_name = '{location}'")
    lake.run(create.format("new"))
    lake.run(f"INSERT INTO {ns}.old VALUES (2); INSERT INTO {ns}.new VALUES (3)")
    lake.flush_by_hand(f"{ns}.old")
    lake.flush_by_hand(f"{ns}.new")
    assert lake.rows(f"SELECT id FROM {ns}.old ORDER BY id") == [(1,), (2,)]
    assert len(list((tmp_path / "one").rglob("*.parquet"))) == 2
    assert len(list((tmp_path / "two").rglob("*.parquet"))) == 1
    where = {row[1]: row[3] for row in lake.rows(f"SHOW TABLES IN {ns}")}
    assert where == {"old": f"{tmp_path}/one/{ns}/old", "new": f"{tmp_path}/two/{ns}/new"}


@pytest.mark.parametrize(
    ("kind", "path"),
    [("SHARED", "relative/path"), ("SHARED", ""), ("SHARED", "/tmp/../etc"), ("SHARED", "/tmp/./x"), ("SHARED", "/"), ("SHARED", "s3://"),
     ("SHARED", "ftp://x/y"), ("SHARED", "file:///tmp/x"), ("SHARED", "{tmp}/${{user_id}}/x"), ("USER", "{tmp}/${{user_id}}/${{user_id}}"),
     ("USER", "${{user_id}}/x"), ("USER", "{tmp}/${{userid}}/x"), ("USER", "{tmp}/${{user_id/x"), ("USER", "{tmp}/${{}}"), ("STREAM", "{tmp}/x"),
     ("SHARED", "/proc/nothing/here"), ("SHARED", "/dev/null/x")],
)  # fmt: skip
def test_a_location_that_makes_no_sense_or_cannot_be_written_is_refused(
    lake: SqlLake, ns: str, kind: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = path.format(tmp=tmp_path)
    key = "" if kind == "STREAM" else " PRIMARY KEY"
    refuse(lake, InvalidInputError, ".", f"CREATE {kind} TABLE {ns}.t (id BIGINT{key}) LOCATION '{path}'")
    assert lake.rows(f"SHOW TABLES IN {ns}") == []
    assert list(tmp_path.iterdir()) == []
    assert not list(Path("/").glob(".lakefork-*"))


@pytest.mark.parametrize(
    ("kind", "path"),
    [("filesystem", "relative"), ("filesystem", ""), ("filesystem", "/proc/nothing/here"), ("filesystem", "s3://bucket/x"), ("s3", "/tmp/x"),
     ("ftp", "/tmp/x"), ("filesystem", "/tmp/${nobody}"), ("filesystem", "/tmp/a/../b")],
)  # fmt: skip
def test_a_bad_storage_location_is_refused_when_it_is_added_or_changed(
    lake: SqlLake, location: str, tmp_path: Path, kind: str, path: str
) -> None:
    insert = "INSERT INTO system.storage_locations (location_name, location_type, path) VALUES ('bad', ?, ?)"
    refuse(lake, InvalidInputError, ".", insert, kind, path)
    refuse(
        lake,
        InvalidInputError,
        ".",
        f"UPDATE system.storage_locations SET location_type = '{kind}', path = '{path}' WHERE location_name = '{location}'",
    )
    found = lake.rows(
        f"SELECT location_type, path FROM system.storage_locations WHERE location_name IN ('bad', '{location}')"
    )
    assert found == [("filesystem", str(tmp_path / "one"))]


def test_a_storage_location_that_became_unusable_is_noticed_when_a_table_is_made(
    lake: SqlLake, ns: str, location: str, tmp_path: Path
) -> None:
    (tmp_path / "one").rmdir()
    (tmp_path / "one").write_text("a file now")
    refuse(
        lake,
        InvalidInputError,
        "cannot be written",
        f"CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY) LOCATION REFERENCE '{location}'",
    )
    assert lake.rows(f"SHOW TABLES IN {ns}") == []


def test_a_location_that_belongs_to_another_table_is_refused(lake: SqlLake, ns: str, tmp_path: Path) -> None:
    lake.run(
        f"CREATE SHARED TABLE {ns}.a (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/x/'; CREATE SHARED TABLE {ns}.c (id BIGINT PRIMARY KEY)"
    )
    refuse(
        lake, ConflictError, f"{ns}.a", f"CREATE SHARED TABLE {ns}.b (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/x'"
    )
    refuse(lake, LakeforkError, ".", f"CREATE SHARED TABLE {ns}.b (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}//x'")


def test_the_default_directory_of_another_table_is_no_location(lake: SqlLake, ns: str, table: str) -> None:
    path = f"{lake.catalog.data_path}/{ns}/t"
    refuse(lake, LakeforkError, ".", f"CREATE SHARED TABLE {ns}.b (id BIGINT PRIMARY KEY) LOCATION '{path}'")


def test_a_user_id_in_a_location_makes_one_directory_per_user(lake: SqlLake, ns: str, tmp_path: Path) -> None:
    lake.run(f"CREATE USER TABLE {ns}.t (id BIGINT PRIMARY KEY) LOCATION '{tmp_path}/${{user_id}}/messages/'")
    for name in ("../x", "a/b", "."):
        lake.run(f"INSERT INTO {ns}.t VALUES (1)", user=name)
        lake.flush_by_hand(f"{ns}.t", name)
        assert lake.rows(f"SELECT id FROM {ns}.t", user=name) == [(1,)]
    assert len(list(tmp_path.rglob("*.parquet"))) == 3
    assert not list(tmp_path.parent.glob("x*"))


# Streams


def test_a_stream_table_shows_its_options_and_has_no_system_columns(lake: SqlLake, ns: str) -> None:
    lake.run(
        f"CREATE STREAM TABLE {ns}.s (kind STRING, payload JSON) WITH (retention = '10s', ephemeral = true, max_buffer = 1000)"
    )
    rows = lake.rows(f"DESCRIBE TABLE {ns}.s")
    assert [row[1] for row in rows if row[0] == "column"] == ["kind", "payload"]
    described = {row[1]: row[2] for row in rows if row[0] == "table"}
    assert (described["table_type"], described["retention"], described["ephemeral"], described["max_buffer"]) == (
        "STREAM",
        "10s",
        "true",
        "1000",
    )
    (listed,) = lake.rows(f"SHOW TABLES IN {ns}")
    assert listed[1:4] == ("s", "STREAM", "N/A (ephemeral)")


def test_a_stream_table_cannot_be_altered_written_to_or_selected_from(lake: SqlLake, ns: str, user: str) -> None:
    lake.run(f"CREATE STREAM TABLE {ns}.s (kind STRING) WITH (retention = '10s')")
    for action in (
        "ADD COLUMN x INT",
        "DROP COLUMN kind",
        "MODIFY COLUMN kind STRING",
        "RENAME COLUMN kind TO k",
        "SET OPTIONS (retention = '1m')",
    ):
        refuse(lake, InvalidInputError, "STREAM", f"ALTER TABLE {ns}.s {action}")
    one = {
        refuse(lake, InvalidInputError, "STREAM", f"INSERT INTO {ns}.s VALUES ('x')", **who)
        for who in ({}, {"user": user}, {"user": "x", "role": Role.SERVICE})
    }
    one.add(refuse(lake, InvalidInputError, "STREAM", f"INSERT INTO {ns}.s AS USER '{user}' VALUES ('x')"))
    assert len(one) == 1
    refuse(lake, InvalidInputError, "STREAM", f"UPDATE {ns}.s SET kind = 'x'")
    refuse(lake, InvalidInputError, "STREAM", f"DELETE FROM {ns}.s")
    refuse(lake, InvalidInputError, "STREAM", f"SELECT * FROM {ns}.s")
    lake.run(f"SHOW TABLE STATS {ns}.s; DROP STREAM TABLE {ns}.s")


@pytest.mark.parametrize(
    "clause",
    ["WITH (retention = 'never')", "WITH (max_buffer = 0)", "WITH (max_buffer = '5')", "WITH (ephemeral = 'yes')", "WITH (deleted_retention = '7d')",
     "FLUSH POLICY ROWS 5", "LOCATION '/tmp/x'", "WITH (colour = 'red')", "WITH (retention = '1s', retention = '2s')"],
)  # fmt: skip
def test_options_that_a_stream_table_does_not_have_are_refused(lake: SqlLake, ns: str, clause: str) -> None:
    refuse(lake, InvalidInputError, ".", f"CREATE STREAM TABLE {ns}.s (kind STRING) {clause}")


# AS USER


def test_as_user_writes_rows_that_belong_to_that_user(lake: SqlLake, user_table: str, user: str) -> None:
    service: dict[str, Any] = {"user": "bot", "role": Role.SERVICE}
    assert lake.count(f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'a'), (2, 'b')", **service) == 2
    assert lake.count(f"INSERT INTO {user_table} (id, v) AS USER '{user}' VALUES (?, ?)", 3, "c", **service) == 1
    assert lake.count(f"INSERT INTO {user_table} AS USER '{user}' VALUES ($2, $1)", "d", 4, **service) == 1
    assert lake.count(f"INSERT INTO {user_table} (v) VALUES ('e'), ('f') AS USER '{user}'", **service) == 2
    assert lake.count(f"UPDATE {user_table} AS USER '{user}' SET v = ? WHERE id = ?", "B", 2, **service) == 1
    assert lake.count(f"DELETE FROM {user_table} AS USER '{user}' WHERE id = ?", 3, **service) == 1
    assert lake.count(f"UPDATE {user_table} SET v = 'not mine'", **service) == 0
    assert lake.rows(f"SELECT id, v FROM {user_table} WHERE id < 100 ORDER BY id", user=user) == [
        (1, "a"),
        (2, "B"),
        (4, "d"),
    ]
    assert lake.rows(f"SELECT count(*) FROM {user_table}", user="bot") == [(0,)]
    refuse(lake, ConflictError, "exists", f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'again')", **service)
    assert lake.count(f"INSERT INTO {user_table} AS USER '{add_user(lake)}' VALUES (1, 'other')", **service) == 1


def test_as_user_for_an_unknown_and_a_deleted_user_fails_with_the_same_words(
    lake: SqlLake, user_table: str, user: str
) -> None:
    lake.run(f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'a')")
    lake.run(f"DELETE FROM system.users WHERE user_id = '{user}'")
    messages = set()
    for name in (user, "never-existed", user.upper(), f"{user} ", "'' OR true"):
        for text in (f"INSERT INTO {user_table} AS USER '{name}' VALUES (2, 'x')", f"UPDATE {user_table} AS USER '{name}' SET v = 'x'",
                     f"DELETE FROM {user_table} AS USER '{name}' WHERE id = 1"):  # fmt: skip
            messages.add(refuse(lake, PermissionDeniedError, "Invalid user_id for AS USER", text))
    assert len(messages) == 1
    assert lake.rows(f"SELECT id, v FROM {user_table}", role=Role.SERVICE) == [(1, "a")]


def test_as_user_is_refused_for_role_user_even_for_oneself(lake: SqlLake, user_table: str, user: str) -> None:
    for name in (user, "other"):
        for text in (f"INSERT INTO {user_table} AS USER '{name}' VALUES (1, 'x')", f"UPDATE {user_table} AS USER '{name}' SET v = 'x'",
                     f"DELETE FROM {user_table} AS USER '{name}'"):  # fmt: skip
            refuse(lake, PermissionDeniedError, "AS USER requires service/admin role", text, user=user)


def test_as_user_is_refused_for_shared_and_system_tables(lake: SqlLake, table: str, user: str) -> None:
    for text in (f"INSERT INTO {table} AS USER '{user}' VALUES (1, 'x', 1)", f"UPDATE {table} AS USER '{user}' SET v = 'x'",
                 f"DELETE FROM {table} AS USER '{user}'", f"INSERT INTO {table} AS USER 'nobody' VALUES (1, 'x', 1)"):  # fmt: skip
        refuse(lake, PermissionDeniedError, "AS USER clause not supported for SHARED tables", text)
    refuse(lake, PermissionDeniedError, "AS USER", f"INSERT INTO system.users (user_id) AS USER '{user}' VALUES ('x')")


@pytest.mark.parametrize("text", ["SELECT 1 AS USER 'x'", "INSERT INTO {t} AS USER VALUES (1, 'a')", "INSERT INTO {t} AS USER '' VALUES (1, 'a')",
                                  "INSERT INTO {t} AS USER 'a' VALUES (1, 'a') AS USER 'b'", "INSERT INTO {t} AS USER ? VALUES (1, 'a')",
                                  "UPDATE {t} SET v = 'x' AS USER 'a' WHERE id = 1", "DROP TABLE {t} AS USER 'a'"])  # fmt: skip
def test_as_user_in_the_wrong_place_is_a_syntax_error(lake: SqlLake, user_table: str, text: str) -> None:
    refuse(lake, InvalidInputError, ".", text.format(t=user_table), "u")


def test_as_user_is_audited_with_actor_and_subject(lake: SqlLake, user_table: str, user: str) -> None:
    lake.run(f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'a'), (2, 'b')", user="bot", role=Role.SERVICE)
    lake.run(
        f"UPDATE {user_table} AS USER '{user}' SET v = 'c'; DELETE FROM {user_table} AS USER '{user}' WHERE id = 1"
    )
    lake.run(f"INSERT INTO {user_table} VALUES (7, 'own')", user=user)
    refuse(
        lake,
        ConflictError,
        "exists",
        f"INSERT INTO {user_table} AS USER '{user}' VALUES (2, 'again')",
        user="bot",
        role=Role.SERVICE,
    )
    audit = f"SELECT actor, role, subject, action, affected_rows FROM system.audit WHERE table_name = '{user_table}' ORDER BY occurred_at"
    expected = [
        ("bot", "service", user, "INSERT", 2),
        ("(admin)", "admin", user, "UPDATE", 2),
        ("(admin)", "admin", user, "DELETE", 1),
    ]
    assert lake.rows(audit) == expected
    assert lake.rows(audit, user=user) == expected
    assert lake.rows(audit, user="stranger") == []


def test_as_user_reads_what_that_user_may_read(lake: SqlLake, ns: str, user_table: str, user: str) -> None:
    other = add_user(lake)
    lake.run(f"CREATE USER TABLE {ns}.copy (id BIGINT PRIMARY KEY, v STRING)")
    lake.run(
        f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, 'mine'); INSERT INTO {user_table} AS USER '{other}' VALUES (2, 'theirs')"
    )
    lake.run(f"INSERT INTO {ns}.copy AS USER '{user}' SELECT id, v FROM {user_table}")
    assert lake.rows(f"SELECT id, v FROM {ns}.copy", user=user) == [(1, "mine")]


def test_current_user_in_as_user_is_the_subject(lake: SqlLake, user_table: str, user: str) -> None:
    lake.run(f"INSERT INTO {user_table} AS USER '{user}' VALUES (1, CURRENT_USER())", user="bot", role=Role.SERVICE)
    assert lake.rows(f"SELECT v FROM {user_table}", user=user) == [(user,)]
