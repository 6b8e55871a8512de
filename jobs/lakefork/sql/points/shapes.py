"""Shapes of texts: statements that differ only in constants have the same shape."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_TEXT = 2_000  # characters; longer texts hold data, and are not repeated
MAX_DIGITS = 19
_TOKEN = re.compile(
    r"""
    (?P<text> '(?:[^'\\]|'')*' )
    | (?P<number> \d+ (?![\w.]) )
    | (?P<parameter> \? )
    | (?P<other> "(?:[^"\\]|"")*" | [^\W\d]\w* | [\s(),.=*+] | -(?!-) )
    """,
    re.VERBOSE,
)


class Shaped(NamedTuple):
    """A text with ? instead of constants, and the values of all ?; source: the text of the statement itself."""

    shape: str
    values: tuple[Any, ...]
    source: str


def shape_of(text: str, parameters: Sequence[Any]) -> Shaped | None:
    """Returns the shape of a text with one statement; None if it is too long or lacks parameters."""
    if len(text) > MAX_TEXT:
        return None
    source = text.strip().rstrip(";").rstrip()
    given = iter(parameters)
    parts: list[str] = []
    values: list[Any] = []
    end = 0
    for match in _TOKEN.finditer(source):
        kind, token = match.lastgroup, match.group()
        if match.start() != end or (kind == "number" and len(token) > MAX_DIGITS):
            break
        end = match.end()
        if kind == "other":
            parts.append(token)
            continue
        parts.append("?")
        if kind == "parameter":
            try:
                values.append(next(given))
            except StopIteration:
                return None
        else:
            values.append(int(token) if kind == "number" else token[1:-1].replace("''", "'"))
    if end != len(source):  # something else is in it: the text is its own shape
        return Shaped(source, tuple(parameters), source)
    return None if any(True for _ in given) else Shaped("".join(parts), tuple(values), source)
