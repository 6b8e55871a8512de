"""Converts constants in a query to values of the column they are compared with, if all engines agree."""

import datetime
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from sqlglot import exp

from lakefork.model.column_types import ColumnType
from lakefork.model.predicates import is_exact
from lakefork.sql.expressions import constant

_MAX_EXACT = 1 << 53  # whole numbers up to here are doubles too
_MAX_DIGITS = 15
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,15})?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d\d:\d\d:\d\d(\.\d{1,6})?")
_MOMENT = re.compile(rf"{_DATE.pattern}([ T]{_TIME.pattern})?")
_ZONED = re.compile(rf"{_DATE.pattern}[ T]{_TIME.pattern}([+-]\d\d(:\d\d)?|Z)?")


def exact_value(expression: exp.Expr, kind: ColumnType) -> Any:
    """Returns the value of a constant; None: it is not a constant, or engines might disagree."""
    expression = expression.unnest()
    if isinstance(expression, exp.Cast):
        return _of_text(expression.this, kind) if _says(expression, kind) else None
    known, value = _literal(expression)
    if not known or value is None:
        return None
    if isinstance(value, str) and kind.name in _FROM_TEXT:
        return _of_text(expression, kind)
    if kind.digits or kind.name in ("float32", "float64"):
        return _number(value, kind)
    return value if is_exact(value, kind) else None


def _literal(expression: exp.Expr) -> tuple[bool, Any]:
    """Returns a literal's value; numbers with a decimal point as Decimal."""
    if isinstance(expression, exp.Neg):
        known, value = _literal(expression.this)
        return (True, -value) if known and type(value) in (int, Decimal) else (False, None)
    if isinstance(expression, exp.Literal) and not expression.is_string and "." in expression.this:
        digits = str(expression.this)
        return (True, Decimal(digits)) if _NUMBER.fullmatch(digits) else (False, None)
    return constant(expression)


def _number(value: Any, kind: ColumnType) -> Any:
    if type(value) not in (int, Decimal):
        return None
    exact = Decimal(value)
    if len(exact.as_tuple().digits) > _MAX_DIGITS or abs(exact) >= _MAX_EXACT:
        return None
    if kind.name == "float64":
        return float(exact)
    if kind.digits:
        precision, scale = kind.digits
        fits = abs(exact) < 10 ** (precision - scale) and exact == round(exact, scale)
        return round(exact, scale) if fits else None
    return None  # DuckDB rounds it to a single


def _says(cast: exp.Cast, kind: ColumnType) -> bool:
    """Tells whether DATE '…', TIMESTAMP '…' and so on match the column's type, or are a date for a time."""
    said = cast.to.sql(dialect="duckdb").upper()
    return said in _CAST_NAMES.get(kind.name, ()) and isinstance(cast.this, exp.Literal) and cast.this.is_string


def _of_text(expression: exp.Expr, kind: ColumnType) -> Any:
    known, text = constant(expression)
    if not known or not isinstance(text, str):
        return None
    pattern, parse = _FROM_TEXT[kind.name]
    try:
        return parse(text) if pattern.fullmatch(text) else None
    except ValueError:
        return None


def _zoned(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)  # the engine's time zone


_FROM_TEXT: dict[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "date": (_DATE, datetime.date.fromisoformat),
    "time": (_TIME, datetime.time.fromisoformat),
    "timestamp": (_MOMENT, datetime.datetime.fromisoformat),
    "timestamptz": (_ZONED, _zoned),
    "uuid": (re.compile(r"[0-9a-fA-F-]{32,36}"), uuid.UUID),
}
_CAST_NAMES = {
    "date": ("DATE",),
    "time": ("TIME",),
    "timestamp": ("TIMESTAMP", "DATE"),
    "timestamptz": ("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"),
    "uuid": ("UUID",),
}
