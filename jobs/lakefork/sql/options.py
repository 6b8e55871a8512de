"""Options of tables: how long, how many, where; checked when a table is made or altered, kept as tags."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from lakefork.cold.layout import USER_VARIABLE
from lakefork.durations import duration_text, seconds_of
from lakefork.errors import InvalidInputError
from lakefork.sql.statements import FlushPolicy, OptionValue, TableKind
from lakefork.tables import SEQ, Column, fold

FLUSH_ROWS = (1, 10_000_000)
FLUSH_SECONDS = (1, 30 * 86_400)


def flush_tags(policy: FlushPolicy) -> dict[str, str]:
    tags = {}
    if policy.rows is not None:
        tags["flush_rows"] = str(_within("FLUSH POLICY ROWS", policy.rows, FLUSH_ROWS))
    if policy.interval is not None:
        seconds = seconds_of(policy.interval, "FLUSH POLICY INTERVAL")
        tags["flush_interval"] = str(_within("FLUSH POLICY INTERVAL (seconds)", seconds, FLUSH_SECONDS))
    return tags


def flush_policy_text(tags: Mapping[str, str]) -> str | None:
    parts = [f"ROWS {tags['flush_rows']}"] if "flush_rows" in tags else []
    parts += [f"INTERVAL '{duration_text(int(tags['flush_interval']))}'"] if "flush_interval" in tags else []
    return " ".join(parts) or None


def option_tags(kind: TableKind, options: Mapping[str, OptionValue]) -> dict[str, str]:
    """Checked options as tags; what a kind of table does not know is refused."""
    known = _STREAM_OPTIONS if kind is TableKind.STREAM else _TABLE_OPTIONS
    tags = {}
    for name, value in options.items():
        key = name.lower()
        if key not in known:
            raise InvalidInputError(f"a {kind} table has no option {name}; it has {', '.join(sorted(known))}")
        tags[f"option.{key}"] = json.dumps(known[key](key, value))
    return tags


def check_location(kind: TableKind, path: str) -> str:
    """The path without a slash at its end; ${user_id} only where rows belong to users."""
    if kind is TableKind.STREAM:
        raise InvalidInputError("a STREAM table has no LOCATION: its events are never written to files")
    cleaned = path.replace(USER_VARIABLE, "")
    if "${" in cleaned:
        raise InvalidInputError(f"LOCATION {path!r}: the only variable is {USER_VARIABLE}")
    if USER_VARIABLE in path and kind is not TableKind.USER:
        raise InvalidInputError(f"LOCATION {path!r}: {USER_VARIABLE} makes sense for USER tables only")
    if path.count(USER_VARIABLE) > 1:
        raise InvalidInputError(f"LOCATION {path!r}: {USER_VARIABLE} can stand there once")
    scheme = "s3://" if path.startswith("s3://") else "/"
    parts = [part for part in path.removeprefix(scheme).split("/") if part]
    if not path.startswith(scheme) or not parts or {".", ".."} & set(parts) or (scheme == "s3://" and "$" in parts[0]):
        raise InvalidInputError(f"LOCATION {path!r} must be absolute (/… or s3://bucket/…), without . or .. as a part")
    return scheme + "/".join(parts)


def locations_overlap(one: str, other: str) -> bool:
    """Whether a file of one table could lie within the directory of the other, for any user."""
    return all(_may_be_equal(a, b) for a, b in zip(one.split("/"), other.split("/"), strict=False))


def _may_be_equal(one: str, other: str) -> bool:
    if USER_VARIABLE in one and USER_VARIABLE in other:
        return True
    if USER_VARIABLE in other:
        one, other = other, one
    head, variable, tail = one.partition(USER_VARIABLE)
    if not variable:
        return one == other
    return other.startswith(head) and other.endswith(tail) and len(other) >= len(head) + len(tail)


def static_part(location: str) -> str:
    """The directory above whatever depends on the user."""
    head, found, _ = location.partition(USER_VARIABLE)
    return head.rpartition("/")[0] if found else location


def _within(what: str, value: int, bounds: tuple[int, int]) -> int:
    if not bounds[0] <= value <= bounds[1]:
        raise InvalidInputError(f"{what} {value} is out of bounds: {bounds[0]} to {bounds[1]}")
    return value


def _retention(name: str, value: OptionValue) -> Any:
    if str(value).lower() != "off":
        seconds_of(str(value), name)
    return str(value).lower()


def _duration(name: str, value: OptionValue) -> Any:
    seconds_of(str(value), name)
    return str(value)


def _boolean(name: str, value: OptionValue) -> Any:
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} = {value!r}: write true or false")
    return value


def _count(name: str, value: OptionValue) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000_000:
        raise InvalidInputError(f"{name} = {value!r}: write a number from 1 to 10000000")
    return value


def _names(name: str, value: OptionValue) -> Any:
    names = [part.strip() for part in str(value).split(",")]
    if not isinstance(value, str) or not all(names):
        raise InvalidInputError(f"{name} = {value!r}: write the names of columns, separated by commas")
    return names


def _probability(name: str, value: OptionValue) -> Any:
    if isinstance(value, bool | str) or not 0 < value < 1:
        raise InvalidInputError(f"{name} = {value!r}: write a number between 0 and 1, for example 0.01")
    return float(value)


def check_column_options(table: str, tags: Mapping[str, str | None], columns: Iterable[Column]) -> None:
    """Options that name columns name existing ones."""
    known = {fold(name) for name in (*(column.name for column in columns), SEQ)}
    for option in COLUMN_OPTIONS:
        for name in json.loads(tags.get(f"option.{option}") or "[]"):
            if fold(name) not in known:
                raise InvalidInputError(f"{table}: {option} names {name}, and there is no such column")


def renamed_in_options(tags: Mapping[str, str], name: str, new_name: str | None) -> dict[str, str | None]:
    """What becomes of options that name a column which is renamed, or (None) dropped."""
    changed: dict[str, str | None] = {}
    for option in COLUMN_OPTIONS:
        names = json.loads(tags.get(f"option.{option}") or "[]")
        if any(fold(one) == fold(name) for one in names):
            kept = [new_name if fold(one) == fold(name) else one for one in names]
            changed[f"option.{option}"] = json.dumps([one for one in kept if one is not None])
    return changed


COLUMN_OPTIONS = ("bloom_filters", "no_bloom_filters")
_TABLE_OPTIONS = {
    "deleted_retention": _retention,
    "retain_for": _duration,
    "retain_snapshots": _count,
    "bloom_filters": _names,
    "no_bloom_filters": _names,
    "bloom_filter_fpp": _probability,
}
_STREAM_OPTIONS = {"retention": _duration, "ephemeral": _boolean, "max_buffer": _count}
