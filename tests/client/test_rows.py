"""Stock DuckDB sees exactly our rows: those of now after flush and dedup, and before that those of an earlier state."""

from typing import Any

import pytest

from support.duckdb_client import ClientView, stock
from support.flush_lake import Filled, FlushLake

BOTH = ("app.mine", "app.ours")
TYPES = {
    "b": ("BOOLEAN", "true"),
    "i2": ("SMALLINT", "-3"),
    "i4": ("INTEGER", "2000000000"),
    "f4": ("REAL", "0.1"),
    "f8": ("DOUBLE", "-0.0"),
    "n": ("DECIMAL(20,4)", "-12.3400"),
    "t": ("TEXT", "'Grüße, \U0001f986'"),
    "x": ("BYTEA", "'\\xAA\\x00'::BLOB"),
    "d": ("DATE", "'1969-12-31'"),
    "h": ("TIME", "'23:59:59.000001'"),
    "ts": ("TIMESTAMP", "'2025-01-02 03:04:05.000006'"),
    "tz": ("TIMESTAMPTZ", "'2025-01-02 03:04:05+02'"),
    "u": ("UUID", "'f0000000-0000-0000-0000-00000000000a'"),
    "j": ("JSON", """'{"a": [1, null]}'"""),
    "li": ("INTEGER[]", "[1, NULL, 3]"),
    "lt": ("TEXT[]", "['a', '']"),
}


def test_every_type(flush_lake: FlushLake) -> None:
    lake, seen = flush_lake.lake, ClientView(flush_lake)
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    values = ", ".join(value for _, value in TYPES.values())
    nulls = ", ".join("NULL" for _ in TYPES)
    lake.run(f"CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, {columns})")
    lake.run(f"INSERT INTO app.t VALUES (9, {values}), (10, {nulls}), (11, {values})")
    lake.run("UPDATE app.t SET f8 = 'NaN', f4 = 'inf' WHERE id = 11")
    flush_lake.flush()
    ours = seen.ours("app.t")
    assert repr(seen.theirs("app.t")) == repr(ours).replace("datetime.timezone.utc", "<UTC>")
    with stock(lake.dsn) as duck:
        for name, (kind, value) in TYPES.items():
            found = duck.execute(f"SELECT id FROM lake.app.t WHERE {name} = {value}::{kind} ORDER BY id").fetchall()
            assert found == ([(9,)] if name in ("f4", "f8") else [(9,), (11,)]), name
        assert duck.execute("SELECT id FROM lake.app.t WHERE f8 > 5").fetchall() == [(11,)], "NaN is the greatest"
        assert duck.execute("SELECT count(*), max(id) FROM lake.app.t WHERE id > 9").fetchall() == [(2, 11)]


def test_updates_and_deletes(seen: ClientView) -> None:
    lake, filled = seen.flush_lake, Filled(seen.flush_lake)
    assert seen.theirs("app.mine") == seen.theirs("app.ours") == []
    lake.lake.run("INSERT INTO app.ours VALUES (1, 'a'), (2, 'b')")
    for user in ("ada", "bob"):
        lake.lake.run("INSERT INTO app.mine VALUES (1, 'a'), (2, 'b')", user=user)
    assert seen.theirs("app.ours") == [], "hot rows are in no file"
    lake.flush()
    assert len(seen.theirs("app.mine")) == 4 and seen.is_same(*BOTH), "what was only inserted is clean"
    first = {table: seen.ours(table) for table in BOTH}

    for number in (1, 2):
        filled.write(number)
        lake.flush()
        assert {table: seen.theirs(table) for table in BOTH} == first, "an exact earlier state"
    lake.dedup()
    assert seen.is_same(*BOTH)
    with stock(lake.lake.dsn) as duck:
        assert duck.execute("SELECT count(*) FROM lake.app.mine WHERE _user_id = 'ada'").fetchall() == [
            (len(lake.lake.rows("SELECT id FROM app.mine", user="ada")),)
        ]
    check_history(seen)

    lake.lake.run("INSERT INTO app.ours VALUES (100, 'z')")
    lake.flush()
    assert seen.is_same(*BOTH), "new keys beside the others are clean, too"
    lake.lake.run("DELETE FROM app.ours")
    lake.flush()
    assert len(seen.theirs("app.ours")) > 0
    lake.dedup()
    assert seen.theirs("app.ours") == seen.ours("app.ours") == []
    check_history(seen)


def check_history(seen: ClientView) -> None:
    """At each snapshot, DuckDB sees the last clean state before it."""
    created = {table: seen.lake.find(table).definition.definition_snapshot for table in BOTH}
    clean = {table: seen.clean(table) for table in BOTH}
    ours: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    with stock(seen.flush_lake.lake.dsn, seen.catalog) as duck:
        for number in seen.own_snapshots():
            for table in BOTH:
                if number < created[table]:
                    continue
                state = max((one for one in clean[table] if one <= number), default=None)
                if (table, state) not in ours and state is not None:
                    ours[table, state] = seen.ours(table, state)
                found = duck.execute(f"FROM lake.{table} AT (VERSION => {number}) ORDER BY ALL").fetchall()
                assert found == (ours[table, state] if state is not None else []), (table, number)


def test_rows_that_were_deleted_before_they_were_flushed(seen: ClientView) -> None:
    lake = seen.flush_lake
    lake.lake.run("INSERT INTO app.ours VALUES (1, 'a'), (2, 'b'), (3, 'c'); DELETE FROM app.ours WHERE id = 2")
    lake.flush()
    assert seen.theirs("app.ours") == [], "one file with rows and tombstones"
    lake.dedup()
    assert seen.is_same("app.ours") and len(seen.theirs("app.ours")) == 2
    lake.lake.run("INSERT INTO app.ours VALUES (2, 'again')")
    lake.flush()
    lake.dedup()
    assert seen.is_same("app.ours") and len(seen.theirs("app.ours")) == 3


def test_altered_tables(seen: ClientView) -> None:
    lake = seen.flush_lake
    lake.lake.run(
        "CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, a TEXT, b SMALLINT, c TEXT); "
        "INSERT INTO app.t VALUES (1, 'one', 1, 'x'), (2, 'two', 2, 'y')"
    )
    lake.flush()
    before, snapshot = seen.ours("app.t"), seen.own_snapshots()[-1]
    assert seen.theirs("app.t") == before
    lake.lake.run(
        "ALTER TABLE app.t RENAME COLUMN a TO name; ALTER TABLE app.t ADD COLUMN d INTEGER DEFAULT 7; "
        "ALTER TABLE app.t DROP COLUMN c; ALTER TABLE app.t MODIFY COLUMN b BIGINT; ALTER TABLE app.t ADD COLUMN c DATE"
    )
    assert seen.theirs("app.t") == seen.ours("app.t"), "the old file under the new definition"
    lake.lake.run("INSERT INTO app.t (id, name, b, c) VALUES (5000000000, 'three', 3000000000, '2025-01-01')")
    lake.flush()
    assert seen.theirs("app.t") == seen.ours("app.t") and len(seen.ours("app.t")) == 3
    assert seen.theirs("app.t", snapshot) == before == seen.ours("app.t", snapshot)
    with stock(lake.lake.dsn) as duck:
        names = [row[0] for row in duck.execute("DESCRIBE lake.app.t").fetchall()]
    assert names == ["id", "name", "b", "d", "c", "_seq", "_deleted"]


@pytest.mark.parametrize("location", [False, True], ids=["below the catalog", "LOCATION"])
def test_odd_names_and_places(flush_lake: FlushLake, tmp_path: Any, location: bool) -> None:
    where = f"LOCATION '{tmp_path}/else where/{{userId}}'" if location else ""
    flush_lake.lake.run(
        f'CREATE NAMESPACE "Ünder"; CREATE USER TABLE "Ünder"."a b" (id BIGINT PRIMARY KEY, "x y" TEXT) {where}'
    )
    flush_lake.lake.run("""INSERT INTO "Ünder"."a b" VALUES (1, 'v')""", user="o'brien/ä")
    flush_lake.flush()
    with stock(flush_lake.lake.dsn) as duck:
        found = duck.execute('SELECT id, "x y", _user_id FROM lake."Ünder"."a b"').fetchall()
    assert found == [(1, "v", "o'brien/ä")]
