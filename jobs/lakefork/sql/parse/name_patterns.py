"""Name patterns in rules: plain names, * for any run of characters, regular expressions in linear time (RE2)."""

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from lakefork.model.tables import fold

LONGEST = 300
SPECIAL = frozenset("[](){}|+?^$\\")
KNOWN_ESCAPES = frozenset("dDwWsS")
_ESCAPED = re.compile(r"\\([A-Za-z0-9]?)")
_LITERAL = re.compile(r"\\[^A-Za-z0-9]")
_CAPITALS = re.compile(r"\\.|[A-Z]")
_PIECES = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\.\*|.", re.DOTALL)


def is_pattern(text: str) -> bool:
    """Tells whether the text can match more than one name."""
    return "*" in text or _is_regular_expression(_LITERAL.sub("", text))


def quoted_pattern(name: str, *, alone: bool) -> str:
    """Returns a pattern that matches exactly this name, also as a part of another pattern."""
    special = SPECIAL if alone else SPECIAL | {"."}
    return "".join(f"\\{character}" if character in special else character for character in name)


def problem_of(pattern: str) -> str | None:
    """Returns why a pattern is invalid; None: it is valid."""
    if not _is_regular_expression(pattern):
        return None
    if len(pattern) > LONGEST:
        return f"it has more than {LONGEST} characters"
    if unknown := set(_ESCAPED.findall(pattern)) - KNOWN_ESCAPES - {""}:
        return f"\\{min(unknown)} is not supported, only \\d, \\w and \\s"
    try:
        # On its own, so that unbalanced parentheses cannot close the anchors' group.
        pc.match_substring_regex(pa.scalar(""), pattern=_regular_expression(pattern))
    except pa.ArrowInvalid as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return None


@lru_cache(maxsize=100_000)
def matches(pattern: str, name: str) -> bool:
    """Tells whether a pattern matches the whole name, ignoring case."""
    if _is_regular_expression(pattern):
        whole = rf"\A(?:{_regular_expression(pattern)})\z"
        return bool(pc.match_substring_regex(pa.scalar(fold(name)), pattern=whole).as_py())
    return _matches_stars(fold(pattern).replace(".*", "*"), fold(name))


def _is_regular_expression(pattern: str) -> bool:
    return not SPECIAL.isdisjoint(pattern)


def _regular_expression(pattern: str) -> str:
    """The same for RE2: a * repeats a class or group before it, and any other one stands for any run of characters."""
    found: list[str] = []
    for piece in _PIECES.findall(_CAPITALS.sub(_fold_one, pattern)):
        repeats = bool(found) and (found[-1] == ")" or (len(found[-1]) > 1 and found[-1][0] == "["))
        found.append(".*" if piece == "*" and not repeats else piece)
    return "".join(found)


def _fold_one(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith("\\") else fold(found[0])


def _matches_stars(pattern: str, name: str) -> bool:
    first, *rest = pattern.split("*")
    if not rest:
        return name == first
    *middle, last = rest
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    place, end = len(first), len(name) - len(last)
    for piece in middle:
        found = name.find(piece, place, end)
        if found < 0:
            return False
        place = found + len(piece)
    return True
