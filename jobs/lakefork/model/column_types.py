"""Column types, with their names in Postgres, DuckDB, Arrow, Parquet and DuckLake (docs/sql.md)."""

import functools
import re
from dataclasses import dataclass
from typing import Any

from lakefork.errors import InvalidInputError

MAX_DIGITS = 38
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True)
class ColumnType:
    """A type with its names in other systems; element: the type of an array's elements."""

    name: str  # DuckLake's name; list<…> for arrays
    postgres: str
    duckdb: str
    element: "ColumnType | None" = None

    @functools.cached_property
    def arrow(self) -> Any:
        import pyarrow as pa

        if self.element:
            return pa.list_(self.element.arrow)
        if self.digits:
            return pa.decimal128(*self.digits)
        return _arrow_types()[self.name]

    @functools.cached_property
    def digits(self) -> tuple[int, int] | None:
        """Returns precision and scale of a decimal."""
        match = _DECIMAL.fullmatch(self.name)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def readable(self) -> str:
        """Returns the Postgres type in which Arrow can read values exactly."""
        if self.element:
            return f"{self.element.readable}[]"
        return "text" if self.digits else self.postgres

    def widens_to(self, other: "ColumnType") -> bool:
        """Tells whether every value keeps its meaning in the other type, and files keep their statistics."""
        if self == other:
            return True
        if self.digits and other.digits:
            (precision, scale), (new_precision, new_scale) = self.digits, other.digits
            return new_scale >= scale and new_precision - new_scale >= precision - scale
        if self.name in _INTEGER_DIGITS and other.digits:
            return other.digits[0] - other.digits[1] >= _INTEGER_DIGITS[self.name]
        return other.name in _WIDER.get(self.name, ())


_INTEGER_DIGITS = {"int16": 5, "int32": 10, "int64": 19}
_WIDER = {
    "int16": ("int32", "int64", "float32", "float64"),
    "int32": ("int64", "float64"),
    "float32": ("float64",),
}
_SCALARS = {
    name: ColumnType(name, postgres, duckdb)
    for name, postgres, duckdb in (
        ("boolean", "boolean", "BOOLEAN"),
        ("int16", "smallint", "SMALLINT"),
        ("int32", "integer", "INTEGER"),
        ("int64", "bigint", "BIGINT"),
        ("float32", "real", "FLOAT"),
        ("float64", "double precision", "DOUBLE"),
        ("varchar", "text", "VARCHAR"),
        ("blob", "bytea", "BLOB"),
        ("date", "date", "DATE"),
        ("time", "time", "TIME"),
        ("timestamp", "timestamp", "TIMESTAMP"),
        ("timestamptz", "timestamptz", "TIMESTAMP WITH TIME ZONE"),
        ("uuid", "uuid", "UUID"),
        ("json", "json", "JSON"),
    )
}
BIGINT, BOOLEAN, TEXT, UUID = (_SCALARS[name] for name in ("int64", "boolean", "varchar", "uuid"))


@functools.cache
def column_type(name: str) -> ColumnType:
    """Returns the type with this DuckLake name; list<element> for arrays."""
    if name in _SCALARS:
        return _SCALARS[name]
    if name.startswith("list<") and name.endswith(">"):
        return array_of(column_type(name[5:-1]))
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= MAX_DIGITS or scale > precision:
            raise InvalidInputError(
                f"DECIMAL({precision},{scale}) is out of range: up to {MAX_DIGITS} digits, scale within"
            )
        return ColumnType(name, f"numeric({precision},{scale})", f"DECIMAL({precision},{scale})")
    raise InvalidInputError(f"column type {name} does not exist; docs/sql.md lists the types")


@functools.cache
def array_of(element: ColumnType) -> ColumnType:
    if element.element:
        raise InvalidInputError("arrays of arrays are not supported; use JSON")
    return ColumnType(f"list<{element.name}>", f"{element.postgres}[]", f"{element.duckdb}[]", element)


@functools.cache
def _arrow_types() -> dict[str, Any]:
    import pyarrow as pa

    return {
        "boolean": pa.bool_(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "float32": pa.float32(),
        "float64": pa.float64(), "varchar": pa.string(), "blob": pa.binary(), "date": pa.date32(),
        "time": pa.time64("us"),
        "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", tz="UTC"), "uuid": pa.uuid(),
        "json": pa.json_(pa.string()),
    }  # fmt: skip
