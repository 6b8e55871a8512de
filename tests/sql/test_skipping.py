"""What a SELECT skips, how EXPLAIN reports it, and that no result changes because of it."""

import pytest

from lakefork.errors import ConflictError
from lakefork.read import probing
from support.sql_lake import SqlLake

EXPLAINED = ("batches", "batches_read", "batches_grouped", "skipped")


@pytest.fixture
def app(lake: SqlLake, monkeypatch: pytest.MonkeyPatch) -> SqlLake:
    monkeypatch.setattr(probing, "MIN_BATCHES_TO_PROBE", 1)
    lake.run("CREATE NAMESPACE app")
    return lake


def explain(lake: SqlLake, query: str) -> dict[str, object]:
    (found,) = lake.run(f"EXPLAIN {query}")
    (row,) = found.rows
    said = dict(zip(found.columns, row, strict=True))
    return {name: said[name] for name in EXPLAINED}


def flush_each(lake: SqlLake, table: str, statements: list[str], user: str | None = None) -> None:
    newest = 0
    for statement in statements:
        lake.run(statement, user=user)
        lake.flush_by_hand(table, user, since=newest)
        newest = lake.rows(f"SELECT max(_seq) FROM {table}", user=user)[0][0]


def test_keys_by_range_then_by_bloom_filter(app: SqlLake) -> None:
    app.run("CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    ids = [(0, 10, 20), (1, 11, 21), (2, 12, 22), (100, 110, 120)]
    flush_each(app, "app.t", [f"INSERT INTO app.t VALUES {', '.join(f'({n}, {n})' for n in some)}" for some in ids])
    found = explain(app, "SELECT * FROM app.t WHERE id = 11")
    assert found["batches"] == 4 and found["batches_read"] == 1 and found["batches_grouped"] == 0
    assert found["skipped"] == "1 by id = 11; 2 by bloom filter of id"
    assert app.rows("SELECT id, v FROM app.t WHERE id = 11") == [(11, "11")]
    assert explain(app, "SELECT * FROM app.t WHERE id IN (110, 7)")["batches_read"] == 1
    assert explain(app, "SELECT * FROM app.t WHERE id > 30")["skipped"] == "3 by id > 30"


def test_other_columns_only_where_the_batches_are_clean(app: SqlLake) -> None:
    """An update that moves a row out of the filter must hide the version that satisfies it."""
    app.run("CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, email TEXT, n INT) WITH (bloom_filters = 'email')")
    flush_each(app, "app.t", [
        "INSERT INTO app.t VALUES (1, 'a', 1), (2, 'b', 1)", "INSERT INTO app.t VALUES (3, 'a1', 2), (4, 'b1', 2)",
        "INSERT INTO app.t VALUES (5, 'a', 3), (6, 'zz', 3)",
    ])  # fmt: skip
    query = "SELECT id FROM app.t WHERE email = 'a1' ORDER BY id"
    assert explain(app, query)["batches_read"] == 1
    assert "bloom filter of email" in str(explain(app, query)["skipped"])
    assert app.rows(query) == [(3,)]
    app.run("UPDATE app.t SET email = 'gone' WHERE id = 3")
    app.flush_by_hand("app.t", since=0)
    assert explain(app, query)["batches_grouped"] == 4
    assert app.rows(query) == []
    assert app.rows("SELECT id FROM app.t WHERE email = 'gone'") == [(3,)]


def test_columns_that_swapped_their_names_are_found_by_id(app: SqlLake) -> None:
    app.run("CREATE SHARED TABLE app.t (a BIGINT, b BIGINT, PRIMARY KEY (a, b))")
    flush_each(
        app, "app.t", [f"INSERT INTO app.t VALUES ({n}, 100), ({n + 10}, 100), ({n + 20}, 100)" for n in range(3)]
    )
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        app.run(f"ALTER TABLE app.t RENAME COLUMN {old} TO {new}")
    assert app.rows("SELECT b, a FROM app.t WHERE b = 11 AND a = 100") == [(11, 100)]
    with pytest.raises(ConflictError):
        app.run("INSERT INTO app.t (b, a) VALUES (11, 100)")
    assert app.count("DELETE FROM app.t WHERE b = 11 AND a = 100") == 1
    assert app.rows("SELECT count(*) FROM app.t") == [(8,)]


def test_an_admin_who_asks_for_one_user_reads_what_that_one_has(app: SqlLake) -> None:
    app.run("CREATE USER TABLE app.mine (id BIGINT PRIMARY KEY, n INT)")
    for user in ("ada", "bob", "eve"):
        flush_each(app, "app.mine", [f"INSERT INTO app.mine VALUES (1, 1), (2, {len(user)})"], user)
    app.run("UPDATE app.mine SET n = 7 WHERE id = 1", user="bob")
    one = "SELECT _user_id, id, n FROM app.mine WHERE _user_id = 'bob' ORDER BY id"
    assert app.rows(one) == [("bob", 1, 7), ("bob", 2, 3)]
    assert explain(app, one)["batches"] == 1
    some = "SELECT _user_id, id, n FROM app.mine WHERE _user_id IN ('ada', 'bob') AND id = 1 ORDER BY 1"
    assert app.rows(some) == [("ada", 1, 1), ("bob", 1, 7)]
    assert explain(app, some)["batches_read"] == 2
    assert app.rows("SELECT count(*) FROM app.mine WHERE _user_id > 'bob'") == [(2,)]
    assert explain(app, "SELECT * FROM app.mine WHERE _user_id > 'bob'")["batches_read"] == 1
    assert app.rows("SELECT id FROM app.mine m WHERE m._user_id = 'nobody'") == []
    assert app.rows("SELECT count(*) FROM app.mine a JOIN app.mine b USING (id) WHERE a._user_id = 'ada'") == [(6,)]
