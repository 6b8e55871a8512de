"""Maps SQL's type names to column types."""

from sqlglot import exp

from lakefork.errors import InvalidInputError
from lakefork.model.column_types import ColumnType, array_of, column_type

_T = exp.DataType.Type
_NAMES = {
    _T.BOOLEAN: "boolean", _T.SMALLINT: "int16", _T.INT: "int32", _T.BIGINT: "int64", _T.FLOAT: "float32",
    _T.DOUBLE: "float64",
    _T.VARCHAR: "varchar", _T.TEXT: "varchar", _T.CHAR: "varchar", _T.NVARCHAR: "varchar", _T.NCHAR: "varchar",
    _T.BINARY: "blob", _T.VARBINARY: "blob", _T.BLOB: "blob",
    _T.DATE: "date", _T.TIME: "time", _T.TIMESTAMP: "timestamp", _T.TIMESTAMPNTZ: "timestamp", _T.DATETIME: "timestamp",
    _T.TIMESTAMPTZ: "timestamptz", _T.TIMESTAMPLTZ: "timestamptz", _T.UUID: "uuid", _T.JSON: "json",
}  # fmt: skip
_ADVICE = {
    _T.TINYINT: "SMALLINT", _T.UTINYINT: "SMALLINT", _T.USMALLINT: "INTEGER", _T.UINT: "BIGINT",
    _T.UBIGINT: "DECIMAL(20, 0)", _T.INT128: "DECIMAL(38, 0)", _T.STRUCT: "JSON", _T.MAP: "JSON", _T.JSONB: "JSON",
    _T.INTERVAL: "BIGINT",
}  # fmt: skip


def type_of(kind: exp.DataType) -> ColumnType:
    if kind.this in (_T.ARRAY, _T.LIST):
        return array_of(type_of(kind.expressions[0]))
    if kind.this == _T.DECIMAL:
        numbers = [int(parameter.name) for parameter in kind.expressions] or [18, 3]
        return column_type(f"decimal({numbers[0]},{numbers[1] if len(numbers) > 1 else 0})")
    if kind.this in _NAMES:
        return column_type(_NAMES[kind.this])
    advice = f"; use {_ADVICE[kind.this]}" if kind.this in _ADVICE else "; docs/sql.md lists the types"
    raise InvalidInputError(f"the type {kind.sql(dialect='duckdb')} is not supported{advice}")
