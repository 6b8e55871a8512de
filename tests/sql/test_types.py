"""Every column type keeps every value: through SQL literals and parameters, in the hot store and in batches."""

import datetime
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest

from lakefork.errors import InvalidInputError
from sql_lake import SqlLake

UTC = datetime.UTC
ONE = uuid.UUID("00000000-0000-0000-0000-000000000001")
LAST = uuid.UUID("ffffffff-ffff-ffff-ffff-ffffffffffff")
VALUES: dict[str, list[Any]] = {
    "SMALLINT": [-(2**15), 0, 2**15 - 1],
    "INTEGER": [-(2**31), 0, 2**31 - 1],
    "BIGINT": [-(2**63), 0, 2**63 - 1],
    "FLOAT": [0.5, -0.0, math.inf, -math.inf, math.nan, 1.401298464324817e-45],
    "DOUBLE": [0.1, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308],
    "DECIMAL(10, 2)": [Decimal("12345678.90"), Decimal("-99999999.99"), Decimal("0.00")],
    "DECIMAL(38, 0)": [Decimal(10**38 - 1), Decimal(-(10**38) + 1)],
    "BOOLEAN": [True, False],
    "STRING": ["", "x", "ü🦆 'quoted' \\ \n\t", "a" * 100_000],
    "BYTES": [b"", b"\x00\xff\\x'", bytes(range(256))],
    "DATE": [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)],
    "TIME": [datetime.time(0, 0), datetime.time(23, 59, 59, 999999)],
    "TIMESTAMP": [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "TIMESTAMP WITH TIME ZONE": [datetime.datetime(1, 1, 1, tzinfo=UTC), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    "UUID": [ONE, LAST],
    "JSON": ['{"a": [1, null]}', "[]", '""', "1.50"],
    "BIGINT[]": [[], [1, None, -(2**63)], [2**63 - 1]],
    "STRING[]": [[], ["", "a,b", '"', "{}", None, "NULL", "\\"]],
    "BOOLEAN[]": [[True, None, False]],
    "DOUBLE[]": [[0.5, math.inf]],
    "DECIMAL(10, 2)[]": [[Decimal("1.50"), None]],
    "DATE[]": [[datetime.date(2020, 2, 29)]],
    "TIMESTAMP WITH TIME ZONE[]": [[datetime.datetime(2020, 1, 1, 12, tzinfo=UTC)]],
    "UUID[]": [[ONE, None, LAST]],
    "BYTES[]": [[b"", b"\xff"]],
    "JSON[]": [[None, '1'], ['{"a":1}', '[]']],
}  # fmt: skip


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(same(a, b) for a, b in zip(found, expected, strict=True))
    if isinstance(expected, float) and isinstance(found, float):
        return (
            math.isnan(found)
            if math.isnan(expected)
            else found == expected and math.copysign(1, found) == math.copysign(1, expected)
        )
    return bool(found == expected and (type(found) is type(expected) or isinstance(found, type(expected))))


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
