"""Expressions of users: parameters filled in, who CURRENT_USER is, and which of them are constants."""

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlglot import exp

from lakefork.errors import InvalidInputError
from lakefork.predicates import text_of
from lakefork.sql.session import Session

MOST_DIGITS = 40


def bind(expression: exp.Expr, parameters: Sequence[Any], session: Session) -> exp.Expr:
    """The expression with values for ? and $n, and the session's user for CURRENT_USER; a copy, if it has any."""
    if expression.find(exp.Placeholder, exp.CurrentUser, exp.SessionUser) is None:
        return expression

    def filled(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Placeholder):
            return literal(_value(parameters, int(node.name) - 1))
        if isinstance(node, exp.CurrentUser | exp.SessionUser):
            return exp.Literal.string(session.own_user())
        return node

    return expression.transform(filled)


def highest_parameter(value: Any) -> int:
    """The number of the last parameter in expressions, wherever they are within tuples and mappings."""
    if isinstance(value, exp.Expr):
        return max((int(node.name) for node in value.find_all(exp.Placeholder)), default=0)
    if isinstance(value, Mapping):
        return max(map(highest_parameter, value.values()), default=0)
    return max(map(highest_parameter, value), default=0) if isinstance(value, tuple) else 0


def _value(parameters: Sequence[Any], position: int) -> Any:
    if not 0 <= position < len(parameters):
        raise InvalidInputError(f"there is no value for parameter {position + 1}: {len(parameters)} were given")
    return parameters[position]


def literal(value: Any) -> exp.Expr:
    """A Python value as an expression."""
    try:
        return _literal(value)
    except (RecursionError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"a parameter cannot be used: {error}") from None


def _literal(value: Any) -> exp.Expr:
    if value is None:
        return exp.null()
    if isinstance(value, bool):
        return exp.true() if value else exp.false()
    if isinstance(value, int):
        if abs(value) >= 10**MOST_DIGITS:
            raise InvalidInputError(f"a parameter has more than {MOST_DIGITS} digits")
        return _signed(str(abs(value)), negative=value < 0)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise InvalidInputError(f"a parameter cannot be the decimal {value}")
        return _signed(format(value.copy_abs(), "f"), negative=value.is_signed())
    if isinstance(value, str):
        value.encode()  # half of a surrogate pair cannot be sent
        return exp.Literal.string(value)
    if isinstance(value, Mapping):
        return _cast(json.dumps(value), "JSON")
    if isinstance(value, list | tuple):
        return exp.Array(expressions=[_literal(one) for one in value])
    if isinstance(value, bytes):
        return _cast("".join(f"\\x{byte:02X}" for byte in value), "BLOB")
    for kind, name in _CASTS:
        if isinstance(value, kind):
            aware = isinstance(value, datetime.datetime) and value.tzinfo is not None
            return _cast(repr(value) if kind is float else text_of(value), "TIMESTAMPTZ" if aware else name)
    raise InvalidInputError(f"a parameter of type {type(value).__name__} is not supported")


_CASTS: tuple[tuple[type, str], ...] = (
    (float, "DOUBLE"), (datetime.datetime, "TIMESTAMP"), (datetime.date, "DATE"), (datetime.time, "TIME"),
    (uuid.UUID, "UUID"),
)  # fmt: skip


def _signed(number: str, *, negative: bool) -> exp.Expr:
    literal = exp.Literal.number(number)
    return exp.Neg(this=literal) if negative else literal


def _cast(text: str, kind: str) -> exp.Expr:
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build(kind, dialect="duckdb"))


def constant(expression: exp.Expr | None) -> tuple[bool, Any]:
    """(True, value) for a plain literal, (False, None) for all else."""
    if isinstance(expression, exp.Paren):
        return constant(expression.this)
    if isinstance(expression, exp.Null):
        return True, None
    if isinstance(expression, exp.Boolean):
        return True, bool(expression.this)
    if isinstance(expression, exp.Neg):
        known, value = constant(expression.this)
        return (True, -value) if known and type(value) is int else (False, None)
    if isinstance(expression, exp.Literal):
        if expression.is_string:
            return True, str(expression.this)
        digits = str(expression.this)
        return (True, int(digits)) if digits.isdecimal() and len(digits) <= MOST_DIGITS else (False, None)
    return False, None
