"""Names of tables, columns and users that try to be something else."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from lakefork.errors import InvalidInputError, LakeforkError
from lakefork.sql.session import Role, Session
from support.sql_hostile import refuse, state
from support.sql_lake import SqlLake

NAMES = ["a/b", "..", "../../x", "a.b", 'a"b', "a'b", "a;b", "%2e%2e", "🦆", "SELECT", "a\\b", "a\nb", "ü" * 200, "shared", "configs", "${user_id}", "'; DROP TABLE app.secret; --", " "]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_any_name_of_up_to_200_characters_names_a_namespace_table_and_column(lake: SqlLake, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    table = f"{quoted}.{quoted}"
    outside = set(Path(lake.catalog.data_path).parent.iterdir()) | {
        path for path in Path(lake.catalog.data_path).iterdir() if path.is_file()
    }
    lake.run(f"CREATE NAMESPACE {quoted}; CREATE SHARED TABLE {table} ({quoted} STRING PRIMARY KEY, v STRING)")
    lake.run(f"INSERT INTO {table} VALUES (?, 'a'), ('k', 'b')", name)
    assert lake.count(f"UPDATE {table} SET v = 'c' WHERE {quoted} = ?", name) == 1
    assert lake.rows(f"SELECT {quoted}, {quoted}.{quoted}, v FROM {table} WHERE {quoted} = ?", name) == [
        (name, name, "c")
    ]
    assert lake.rows(f"SELECT x.{quoted} FROM {table} AS x WHERE x.{quoted} IS NOT NULL ORDER BY 1") == sorted(
        [(name,), ("k",)]
    )
    lake.run(
        f"ALTER TABLE {table} ADD COLUMN w INT; DESCRIBE TABLE {table}; SHOW TABLE STATS {table}; SHOW TABLES IN {quoted}"
    )
    lake.run(f"DROP TABLE {table}; DROP NAMESPACE {quoted}")
    now = set(Path(lake.catalog.data_path).parent.iterdir()) | {
        path for path in Path(lake.catalog.data_path).iterdir() if path.is_file()
    }
    assert now == outside


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 201])
def test_names_that_are_empty_or_too_long_are_refused(lake: SqlLake, name: str) -> None:
    refuse(lake, f'CREATE NAMESPACE "{name}"', kind=InvalidInputError)
    refuse(lake, f'CREATE SHARED TABLE app."{name}" (id BIGINT PRIMARY KEY)', kind=InvalidInputError)
    refuse(lake, f'CREATE SHARED TABLE app.x ("{name}" BIGINT PRIMARY KEY)', kind=InvalidInputError)


USERS = ["../x", "a/b", "%2e", "..", "x" * 300, "🦆" * 100, "'; DROP TABLE app.secret; --", "' OR '1'='1", 'a"b', "a\\", "a\nb", "alice ", "ALICE", "${user_id}", "shared"]  # fmt: skip


@pytest.mark.parametrize("name", USERS)
def test_any_user_id_has_rows_of_its_own(lake: SqlLake, name: str) -> None:
    root = Path(lake.catalog.data_path)
    insert = "INSERT INTO app.mine (v) VALUES ('x')"
    for _ in range(2):
        assert lake.count(insert, user=name) == 1
    assert lake.count("INSERT INTO app.mine VALUES (1, CURRENT_USER())", user=name) == 1
    before = set(root.rglob("*.parquet"))
    assert lake.flush_by_hand("app.mine", name) == 3
    (new,) = set(root.rglob("*.parquet")) - before
    assert new.resolve().parent.parent == root / "app" / "mine"
    assert lake.count("UPDATE app.mine SET v = v || '!' WHERE v = 'x'", user=name) == 2
    assert lake.count("DELETE FROM app.mine WHERE v = 'x!'", user=name) == 2
    assert lake.rows("SELECT id, v FROM app.mine", user=name) == [(1, name)]
    assert lake.rows("SELECT v FROM app.mine WHERE _user_id = ? AND id = 1", name) == [(name,)]
    lake.run(
        "INSERT INTO system.users (user_id, permissions) VALUES (?, ['app.filtered.owner = CURRENT_USER()'])", name
    )
    assert lake.rows("SELECT * FROM app.filtered", user=name) == []
    quoted = name.replace("'", "''")
    assert lake.count(f"UPDATE app.mine AS USER '{quoted}' SET v = 'by admin' WHERE id = 1") == 1
    assert lake.rows("SELECT v FROM app.mine", user=name) == [("by admin",)]
    assert lake.rows("SELECT subject FROM system.audit WHERE subject = ?", name) == [(name,)]
    assert lake.count("DELETE FROM app.mine", user=name) == 1
    assert lake.rows("SELECT v FROM app.mine", user="mallory") == [("own",)]


def test_user_ids_that_cannot_be_are_refused(lake: SqlLake) -> None:
    long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=20_000))  # noqa: S311
    insert = "INSERT INTO app.mine (v) VALUES ('not there')"
    lake.run(insert, user="somebody")
    lake.run(insert, user="somebody")
    for name in ("", "a\0b", "\ud800", long):
        for text in (
            insert,
            "SELECT * FROM app.secret",
            "UPDATE app.mine SET v = 'x' WHERE id = 1; SELECT * FROM app.secret",
        ):
            with pytest.raises(LakeforkError) as caught:
                lake.engine.execute(Session("main", name, Role.USER), text)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        "app.mine; DROP TABLE app.secret",
        "app.mine AS x",
        "",
        "app.nothing",
        "(SELECT 1)",
        "main.app.mine",
        "app.secret",
        "system.users",
        "app.mine --",
        "'app.mine'",
    ],
)
def test_bulk_loads_take_nothing_but_a_table(lake: SqlLake, table: str) -> None:
    before = state(lake)
    with pytest.raises(LakeforkError):
        lake.engine.load(lake.session("mallory"), table, pa.table({"id": [90], "owner": ["mallory"], "v": ["x"]}))
    assert state(lake) == before


BAD_LOADS: dict[str, pa.Table] = {
    "no columns": pa.table({}), "unknown": pa.table({"id": [90], "x": [1]}), "twice": pa.table([pa.array([90]), pa.array([91])], names=["id", "ID"]), "struct": pa.table({"id": [{"a": 1}]}), "text": pa.table({"id": ["x"]}), "nul": pa.table({"id": [90], "v": ["a\0"]}), "key": pa.table({"id": [1], "v": ["x"]}),
    "seq": pa.table({"id": [90], "_seq": [1]}), "owner": pa.table({"id": [90], "_user_id": ["alice"]}), "repeated": pa.table({"id": [90, 90]}), "range": pa.table({"id": pa.array([2**64 - 1], pa.uint64())}), "bytes": pa.table({"id": [90], "v": pa.array([b"\xff"]).cast(pa.large_binary())}),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BAD_LOADS if name != "bytes"])
def test_bulk_loads_of_nonsense_are_refused(lake: SqlLake, name: str) -> None:
    before = state(lake)
    with pytest.raises(LakeforkError) as caught:
        lake.engine.load(lake.session("mallory"), "app.mine", BAD_LOADS[name])
    assert "\n" not in str(caught.value)
    assert state(lake) == before
