"""Values of every column type with their extremes, and when two of them are the same."""

import datetime
import math
import uuid
from decimal import Decimal
from typing import Any

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
