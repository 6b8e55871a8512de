"""Which types of Postgres become which of the lake, and what a table of a source becomes. No I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakefork.errors import InvalidInputError
from lakefork.model.column_types import BIGINT, TEXT, ColumnType, array_of, column_type
from lakefork.model.tables import FIRST_COLUMN_ID, SYSTEM_COLUMN_IDS, UPDATED, Column, fold
from lakefork.transfer.postgres_copy.plan import Table, quote

MAX_COLUMNS, MAX_KEY_COLUMNS = 1_000, 16
GENERATED_KEY = "row_key"
RESERVED = frozenset(SYSTEM_COLUMN_IDS) | {UPDATED}
_EXACT = {
    "boolean": "boolean", "smallint": "int16", "integer": "int32", "bigint": "int64", "oid": "int64", "real": "float32",
    "double precision": "float64", "text": "varchar", "name": "varchar", "bytea": "blob", "date": "date",
    "uuid": "uuid", "json": "json", "jsonb": "json",
}  # fmt: skip
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_PRECISION = re.compile(r"\(\d+\)")
_TIMES = {
    "time without time zone": "time", "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "character varying": "varchar", "character": "varchar",
}  # fmt: skip
NOT_HELD = "infinity, NaN, a year before 1 or after 9999, 24:00, or an array of more than one dimension"
# Values that a type of the lake cannot hold, although its type in Postgres can.
_DATE = "NOT {0} BETWEEN '0001-01-01' AND '9999-12-31'"
_MOMENT = "NOT ({0} >= '0001-01-01' AND {0} < '9999-12-31')"
_NOT_HELD = {"date": _DATE, "timestamp": _MOMENT, "timestamptz": _MOMENT, "time": "{0} = '24:00'"}


@dataclass(frozen=True)
class SourceType:
    """A type without its domains; element: of an array, and whether that is an enum."""

    name: str
    is_enum: bool
    element: str | None
    element_is_enum: bool = False

    @classmethod
    def of(cls, declared: str, row: Mapping[str, Any]) -> "SourceType":
        """declared: with precision, as a column has it; of a domain, as the domain has it."""
        name = row["name"] if row["is_domain"] else declared
        element = name.removesuffix("[]") if row["element"] is not None else None
        return cls(name, row["is_enum"], element, bool(row["element_is_enum"]))


@dataclass(frozen=True)
class LakeTable:
    """What a table becomes. selected: an expression per column; refused: per column, whether a value cannot be held."""

    oid: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    owner: str | None
    has_generated_key: bool
    selected: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]

    @property
    def per_user(self) -> bool:
        return self.owner is not None

    def select(self, table: Table, condition: str | None) -> str:
        """Columns by position, then whose the row is, then the number of a column with a value that cannot be held."""
        cases = " ".join(f"WHEN {test} THEN {place}" for place, (_, test) in enumerate(self.refused))
        refused = f"(CASE {cases} END)::smallint" if cases else "NULL::smallint"
        owner = f"{quote(self.owner)}::text" if self.owner else "NULL::text"
        columns = ", ".join((*self.selected, owner, refused))
        where = f" WHERE {condition}" if condition else ""
        return f"SELECT {columns} FROM ONLY {table.qualified}{where}"


def lake_type(kind: SourceType) -> ColumnType | None:
    """None: the lake has no type that holds every value exactly."""
    if kind.is_enum:
        return TEXT
    if kind.element:
        element = lake_type(SourceType(kind.element, kind.element_is_enum, None))
        return array_of(element) if element else None
    name = kind.name
    if name in _EXACT:
        return column_type(_EXACT[name])
    if match := _NUMERIC.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        return column_type(f"decimal({precision},{scale})") if precision <= 38 and scale <= precision else None
    plain = _PRECISION.sub("", name)
    return column_type(_TIMES[plain]) if plain in _TIMES else None


def lake_table(
    table: Table, types: Mapping[int, Mapping[str, Any]], *, owner: str | None, as_text: bool
) -> tuple[LakeTable, list[str]]:
    """The table, and the columns that are refused as no type holds them."""
    columns: list[Column] = []
    selected: list[str] = []
    refused: list[tuple[str, str]] = []
    without_type = []
    names: set[str] = set()
    next_id = FIRST_COLUMN_ID
    for given in table.columns:
        _check_name(table, given.name, names)
        kind = lake_type(SourceType.of(given.type, types[given.type_oid]))
        if kind is None and not as_text:
            without_type.append(f"{table}.{given.name} ({given.type})")
            continue
        expression = quote(given.name)
        selected.append(f"{expression}::{(kind or TEXT).readable}")
        if kind and (test := not_held(kind, expression)):
            refused.append((given.name, test))
        columns.append(Column(next_id, given.name, kind or TEXT, nullable=not given.not_null))
        next_id += 2 if kind and kind.element else 1
    if owner is not None:
        if fold(owner) not in names:
            raise InvalidInputError(f"owner_columns: {table} has no column {owner!r}")
        refused.append((owner, f"{quote(owner)} IS NULL OR {quote(owner)}::text = ''"))
    key = tuple(table.primary_key)
    by_name = {column.name: column for column in columns}
    is_usable = (
        key and len(key) <= MAX_KEY_COLUMNS and all(name in by_name and _is_key(by_name[name].type) for name in key)
    )
    if not is_usable:
        key = (_free_name(names),)
        columns.append(Column(next_id, key[0], BIGINT, nullable=False))
    if len(columns) > MAX_COLUMNS:
        raise InvalidInputError(f"{table}: a table has at most {MAX_COLUMNS} columns")
    found = LakeTable(
        table.oid,
        table.namespace,
        table.name,
        tuple(columns),
        key,
        owner,
        not is_usable,
        tuple(selected),
        tuple(refused),
    )
    return found, without_type


def not_held(kind: ColumnType, expression: str) -> str | None:
    if kind.element:
        inner = not_held(kind.element, "e")
        some = f" OR EXISTS (SELECT FROM unnest({expression}) e WHERE {inner})" if inner else ""
        return f"array_ndims({expression}) > 1 OR array_lower({expression}, 1) <> 1{some}"
    if kind.digits:
        return f"{expression} = 'NaN'"
    test = _NOT_HELD.get(kind.name)
    return test.format(expression) if test else None


def _is_key(kind: ColumnType) -> bool:
    return not kind.element and kind.name not in ("float32", "float64", "json")


def _check_name(table: Table, name: str, names: set[str]) -> None:
    if fold(name) in RESERVED:
        raise InvalidInputError(
            f"{table}: the name {name} is reserved for a system column: exclude the table, or rename the column"
        )
    if fold(name) in names:
        raise InvalidInputError(f"{table}: two columns are called {name}, but for upper and lower case: rename one")
    names.add(fold(name))


def _free_name(names: set[str]) -> str:
    tried = GENERATED_KEY
    while fold(tried) in names:
        tried += "_"
    return tried
