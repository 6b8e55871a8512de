"""Which defaults of columns a copy into the lake keeps: constants, and functions that DuckDB has too."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakefork.model.tables import Column
from lakefork.transfer.postgres_copy.lake_types import LakeTable
from lakefork.transfer.postgres_copy.sessions import SQL, Session

# As pg_get_expr writes them, and what says the same in the lake.
_FUNCTIONS = {
    "now()": "now()", "CURRENT_TIMESTAMP": "now()", "transaction_timestamp()": "now()",
    "statement_timestamp()": "now()", "clock_timestamp()": "now()", "CURRENT_DATE": "current_date",
    "gen_random_uuid()": "uuid()", "uuid_generate_v4()": "uuid()", "uuidv7()": "uuidv7()",
}  # fmt: skip
_QUOTED = re.compile(r"E?'(?:[^'\\]|''|\\.)*'")
_CAST = re.compile(r"::[a-z_][a-z_0-9 .]*(?:\([\d, ]+\))?(?:\[\])?|::\"[^\"]+\"(?:\.\"?\w+\"?)?(?:\[\])?")
_PLAIN = re.compile(r"(?:[\s()+\-\d.e]|NULL|true|false)*")
AT_ONCE = 500


@dataclass(frozen=True)
class SourceDefault:
    """The default of a column; is_serial: its values come from a sequence that the table owns."""

    oid: int
    column: str
    expression: str
    is_serial: bool


def is_constant(expression: str) -> bool:
    """Whether it is made of literals and casts alone, so that it means the same at any time."""
    return _PLAIN.fullmatch(_CAST.sub("", _QUOTED.sub("", expression))) is not None


def with_defaults(session: Session, tables: Sequence[LakeTable]) -> tuple[list[LakeTable], list[str]]:
    """The tables with the defaults that the lake can have, and notes about the others."""
    rows = session.execute(SQL["defaults"], {"oids": [table.oid for table in tables]}).fetchall()
    found = {(row["oid"], row["column"]): SourceDefault(**row) for row in rows}
    values = _evaluate(session, [(found[key], column) for key, column in _columns(tables, found)])
    kept, notes = [], []
    for table in tables:
        columns = []
        for column in table.columns:
            default = found.get((table.oid, column.name))
            if default is None:
                columns.append(column)
                continue
            given = _default_of(column, default, values)
            if given is None:
                about = f"{table.namespace}.{table.name}.{column.name}"
                notes.append(f"default {default.expression} of {about} is not kept: the lake has no such function")
            columns.append(given or column)
        kept.append(replace(table, columns=tuple(columns)))
    return kept, notes


def _columns(
    tables: Sequence[LakeTable], found: Mapping[tuple[int, str], SourceDefault]
) -> list[tuple[tuple[int, str], Column]]:
    return [
        ((table.oid, column.name), column)
        for table in tables
        for column in table.columns
        if (table.oid, column.name) in found
        and is_constant(found[table.oid, column.name].expression)
        and _is_scalar(column)
    ]


def _is_scalar(column: Column) -> bool:
    """DuckDB writes arrays and bytes in another way than Postgres."""
    return not column.type.element and column.type.name != "blob"


def _default_of(column: Column, default: SourceDefault, values: Mapping[tuple[int, str], str | None]) -> Column | None:
    """None: the lake has no such default."""
    key = (default.oid, default.column)
    if key in values:
        return replace(column, default=values[key])
    if expression := _FUNCTIONS.get(default.expression):
        return replace(column, default=expression, default_is_expression=True)
    return column if default.is_serial else None


def _evaluate(session: Session, constants: Sequence[tuple[SourceDefault, Column]]) -> dict[tuple[int, str], str | None]:
    """What the source makes of them, as text."""
    values: dict[tuple[int, str], str | None] = {}
    for start in range(0, len(constants), AT_ONCE):
        some = constants[start : start + AT_ONCE]
        asked = ", ".join(f"(({default.expression})::{column.type.postgres})::text" for default, column in some)
        row: dict[str, Any] | None = session.execute(f"SELECT ARRAY[{asked}] AS found".encode()).fetchone()
        texts = row["found"] if row else []
        values |= {(default.oid, default.column): text for (default, _), text in zip(some, texts, strict=True)}
    return values
