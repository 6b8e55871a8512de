"""Users' expressions: binds parameters and what tells of the session, and recognizes constants."""

import datetime
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlglot import exp

from lakefork.errors import InvalidInputError
from lakefork.model.predicates import text_of
from lakefork.sql.session import Session

MAX_PARAMETER_DIGITS = 40
OF_THE_SESSION: dict[type[exp.Expr], Callable[[Session], exp.Expr]] = {
    exp.CurrentUser: lambda session: exp.Literal.string(session.own_user()),
    exp.SessionUser: lambda session: exp.Literal.string(session.own_user()),
    exp.CurrentRole: lambda session: exp.Literal.string(session.role.name.lower()),
    exp.CurrentCatalog: lambda session: exp.Literal.string(session.catalog),
    exp.CurrentDatabase: lambda session: exp.Literal.string(session.catalog),
    exp.CurrentSchema: lambda session: literal(session.namespace),
}
_BOUND: tuple[type[exp.Expr], ...] = (exp.Placeholder, *OF_THE_SESSION)


def bind(expression: exp.Expr, parameters: Sequence[Any], session: Session) -> exp.Expr:
    """Binds ? and $n, and CURRENT_USER and the like to the session; returns a copy if there are any."""
    if expression.find(*_BOUND) is None:
        return expression
    bound = expression.copy()
    for node in list(bound.find_all(*_BOUND)):
        value = (
            literal(_value(parameters, int(node.name) - 1))
            if isinstance(node, exp.Placeholder)
            else OF_THE_SESSION[type(node)](session)
        )
        if node is bound:
            return value
        _replace_node(node, value)
    return bound


def _replace_node(node: exp.Expr, value: exp.Expr) -> None:
    """Replaces a node like node.replace, which scans all siblings and takes minutes with many parameters."""
    parent, key, index = node.parent, node.arg_key, node.index
    if parent is None or key is None or index is None:
        node.replace(value)
        return
    parent.args[key][index] = value
    value.parent, value.arg_key, value.index = parent, key, index


def highest_parameter(value: Any) -> int:
    """Returns the highest parameter number in expressions, also within tuples and mappings."""
    if isinstance(value, exp.Expr):
        return max((int(node.name) for node in value.find_all(exp.Placeholder)), default=0)
    if isinstance(value, Mapping):
        return max(map(highest_parameter, value.values()), default=0)
    return max(map(highest_parameter, value), default=0) if isinstance(value, tuple) else 0


def _value(parameters: Sequence[Any], position: int) -> Any:
    if not 0 <= position < len(parameters):
        raise InvalidInputError(f"parameter {position + 1} has no value: {len(parameters)} were given")
    return parameters[position]


def literal(value: Any) -> exp.Expr:
    """Returns a Python value as an expression."""
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
        if abs(value) >= 10**MAX_PARAMETER_DIGITS:
            raise InvalidInputError(f"a parameter has more than {MAX_PARAMETER_DIGITS} digits")
        return _signed(str(abs(value)), negative=value < 0)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise InvalidInputError(f"a parameter cannot be the decimal {value}")
        return _signed(format(value.copy_abs(), "f"), negative=value.is_signed())
    if isinstance(value, str):
        value.encode()  # half of a surrogate pair cannot be encoded
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
    """Returns (True, value) for a literal, (False, None) for anything else."""
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
        return (True, int(digits)) if digits.isdecimal() and len(digits) <= MAX_PARAMETER_DIGITS else (False, None)
    return False, None
