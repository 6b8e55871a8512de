"""Every column type keeps every value: through SQL literals and parameters, in the hot store and in batches."""

import pytest

from lakefork.errors import InvalidInputError
from support.sql_lake import SqlLake, new_name
from support.sql_values import VALUES, same


@pytest.mark.parametrize("kind", VALUES)
def test_values_come_back_as_they_were(lake: SqlLake, kind: str) -> None:
    lake.run(f"CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v {kind})")
    values = [*VALUES[kind], None]
    for place, value in enumerate(values):
        assert lake.count("INSERT INTO app.t VALUES (?, ?)", place, value) == 1
    assert lake.count("UPDATE app.t SET v = v WHERE id >= 0") == len(values)

    def check() -> None:
        found = lake.rows("SELECT id, v FROM app.t ORDER BY id")
        for (_, value), expected in zip(found, values, strict=True):
            assert same(value, expected), (value, expected)

    check()
    assert lake.flush_by_hand("app.t") == len(values)
    check()
    assert lake.count("UPDATE app.t SET v = v WHERE id = 0") == 1
    check()


@pytest.mark.parametrize("kind", VALUES)
def test_a_type_can_be_a_default(lake: SqlLake, kind: str) -> None:
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY)")
    lake.run("INSERT INTO app.t VALUES (1)")
    lake.run(f"CREATE SHARED TABLE app.source (id BIGINT PRIMARY KEY, v {kind})")
    value = VALUES[kind][-1]
    lake.run("INSERT INTO app.source VALUES (1, ?)", value)
    text = lake.rows("SELECT CAST(v AS VARCHAR) FROM app.source")[0][0].replace("'", "''")
    lake.run(f"ALTER TABLE app.t ADD COLUMN v {kind} DEFAULT '{text}'")
    lake.run("INSERT INTO app.t (id) VALUES (2)")
    for _ in range(2):
        for (found,) in lake.rows("SELECT v FROM app.t"):
            assert same(found, value), (found, value)
        lake.flush_by_hand("app.t")


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        ("SMALLINT", "32768"), ("INTEGER", "-2147483649"), ("BIGINT", "9223372036854775808"), ("DECIMAL(4, 2)", "100"), ("UUID", "'x'"),
        ("JSON", "'{'"), ("DATE", "'2020-02-30'"), ("BOOLEAN", "'perhaps'"), ("BIGINT[]", "['x']"), ("TIMESTAMP", "'10000-01-01'"),
        ("DATE", "'0001-01-01 (BC)'"), ("DATE", "'infinity'"), ("STRING", "chr(0)"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused_and_nothing_is_written(lake: SqlLake, kind: str, literal: str) -> None:
    lake.run(f"CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v {kind})")
    with pytest.raises(InvalidInputError):
        lake.run(f"INSERT INTO app.t VALUES (1, NULL), (2, {literal})")
    assert lake.rows("SELECT count(*) FROM app.t") == [(0,)]


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("TINYINT", "SMALLINT"),
        ("HUGEINT", "DECIMAL"),
        ("STRUCT(a INT)", "JSON"),
        ("INT[][]", "JSON"),
        ("UBIGINT", "DECIMAL"),
    ],
)
def test_other_types_are_refused_with_advice(lake: SqlLake, kind: str, advice: str) -> None:
    lake.run("CREATE NAMESPACE app")
    with pytest.raises(InvalidInputError, match=advice):
        lake.run(f"CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v {kind})")


@pytest.mark.parametrize("flushed", [False, True], ids=["hot", "cold"])
def test_nan_is_the_greatest_number(lake: SqlLake, flushed: bool) -> None:
    lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, f DOUBLE, g FLOAT)")
    lake.run("INSERT INTO app.t VALUES (1, 'nan', 'nan'), (2, 1.5, 1.5), (3, NULL, NULL), (4, 'inf', 'inf')")
    if flushed:
        lake.flush_by_hand("app.t")
    for column in ("f", "g"):
        assert lake.rows(f"SELECT id FROM app.t WHERE {column} > 1 ORDER BY id") == [(1,), (2,), (4,)]
        assert lake.rows(f"SELECT id FROM app.t WHERE 2 < {column} ORDER BY id") == [(1,), (4,)]
        assert lake.rows(f"SELECT id FROM app.t WHERE {column} = 'nan' ORDER BY id") == [(1,)]
        assert lake.rows(f"SELECT id FROM app.t WHERE {column} <= 'inf' ORDER BY id") == [(2,), (4,)]


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("j = '[]'", [2]), ("'[]' = j", [2]), ("j <> '[]'", [1]), ("j IN ('[]', '{}')", [2]), ("j IS NULL", [3]),
        ("j ->> 'a' = '1'", [1]), ("j::VARCHAR = '[]'", [2]),
    ],
)  # fmt: skip
def test_json_is_compared_as_text(
    module_lake: SqlLake, condition: str, expected: list[int], *, in_batches: bool
) -> None:
    ns = new_name("json")
    module_lake.run(
        f"CREATE NAMESPACE {ns}; CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, j JSON); "
        f"INSERT INTO {ns}.t VALUES (1, '{{\"a\": 1}}'), (2, '[]'), (3, NULL)"
    )
    if in_batches:
        module_lake.flush_by_hand(f"{ns}.t")
    assert [row[0] for row in module_lake.rows(f"SELECT id FROM {ns}.t WHERE {condition} ORDER BY id")] == expected
    assert module_lake.count(f"UPDATE {ns}.t SET j = '[7]' WHERE {condition}") == len(expected)
    assert module_lake.rows(f"SELECT count(*) FROM {ns}.t WHERE j = '[7]'") == [(len(expected),)]
