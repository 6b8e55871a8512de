"""Options of tables, checked when a table is created or altered, and kept as tags."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lakefork.cold.layout import USER_VARIABLE
from lakefork.errors import InvalidInputError
from lakefork.model.durations import duration_text, seconds_of
from lakefork.model.tables import DEFAULT_DELETED_RETENTION, SEQ, Column, TableKind, fold
from lakefork.sql.parse.statements import FlushPolicy, OptionValue

FLUSH_ROWS = (1, 10_000_000)
FLUSH_SECONDS = (1, 30 * 86_400)
MAX_LOCATION, MAX_LOCATION_PARTS = 1_000, 100  # file systems end at about 4,000 characters, the file's name included
RETENTION_DAYS = (1, 36_500)


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
    """Checks options and returns them as tags; refuses options that the kind of table does not have."""
    known = _STREAM_OPTIONS if kind is TableKind.STREAM else _TABLE_OPTIONS
    tags = {}
    for name, value in options.items():
        key = name.lower()
        if key not in known:
            raise InvalidInputError(f"a {kind} table has no option {name}; it has {', '.join(sorted(known))}")
        tags[f"option.{key}"] = json.dumps(known[key](key, value))
    return tags


def namespace_option_tags(options: Mapping[str, OptionValue]) -> dict[str, str]:
    """Checks options of a namespace and returns them as tags; refuses unknown ones."""
    tags = {}
    for name, value in options.items():
        key = name.lower()
        if key not in _NAMESPACE_OPTIONS:
            raise InvalidInputError(f"a namespace has no option {name}; it has {', '.join(sorted(_NAMESPACE_OPTIONS))}")
        tags[f"option.{key}"] = json.dumps(_NAMESPACE_OPTIONS[key](key, value))
    return tags


@dataclass(frozen=True)
class TableDefaults:
    """Defaults of a namespace for new tables."""

    flush_policy: FlushPolicy | None = None
    deleted_retention: str = DEFAULT_DELETED_RETENTION
    location: str | None = None


def table_defaults(tags: Mapping[str, str]) -> TableDefaults:
    """By the tags of a namespace."""
    options = {
        key.removeprefix("option."): json.loads(value) for key, value in tags.items() if key.startswith("option.")
    }
    rows, interval = options.get("flush_rows"), options.get("flush_interval")
    return TableDefaults(
        FlushPolicy(rows=rows, interval=interval) if rows or interval else None,
        options.get("deleted_retention", DEFAULT_DELETED_RETENTION),
        options.get("location"),
    )


def check_location(kind: TableKind, path: str) -> str:
    """Returns the path without a trailing slash; ${user_id} is allowed in USER tables only."""
    if kind is TableKind.STREAM:
        raise InvalidInputError("a STREAM table has no LOCATION: its events are never written to files")
    cleaned = path.replace(USER_VARIABLE, "")
    if "${" in cleaned:
        raise InvalidInputError(f"LOCATION {path!r}: the only variable is {USER_VARIABLE}")
    if USER_VARIABLE in path and kind is not TableKind.USER:
        raise InvalidInputError(f"LOCATION {path!r}: {USER_VARIABLE} is allowed for USER tables only")
    if path.count(USER_VARIABLE) > 1:
        raise InvalidInputError(f"LOCATION {path!r}: {USER_VARIABLE} is allowed only once")
    scheme = "s3://" if path.startswith("s3://") else "/"
    parts = [part for part in path.removeprefix(scheme).split("/") if part]
    if not path.startswith(scheme) or not parts or {".", ".."} & set(parts) or (scheme == "s3://" and "$" in parts[0]):
        raise InvalidInputError(f"LOCATION {path!r} must be absolute (/… or s3://bucket/…), without . or .. as a part")
    if len(parts) > MAX_LOCATION_PARTS or len(path) > MAX_LOCATION:
        raise InvalidInputError(
            f"a LOCATION has at most {MAX_LOCATION} characters and {MAX_LOCATION_PARTS} directories, this one has "
            f"{len(path)} and {len(parts)}"
        )
    return scheme + "/".join(parts)


def locations_overlap(one: str, other: str) -> bool:
    """Tells whether a file of one table could be within the directory of the other, for any user."""
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
    """Returns the directory above the part that depends on the user."""
    head, found, _ = location.partition(USER_VARIABLE)
    return head.rpartition("/")[0] if found else location


def _within(what: str, value: int, bounds: tuple[int, int]) -> int:
    if not bounds[0] <= value <= bounds[1]:
        raise InvalidInputError(f"{what} {value} is out of range: {bounds[0]} to {bounds[1]}")
    return value


def _retention(name: str, value: OptionValue) -> Any:
    if str(value).lower() != "off":
        seconds_of(str(value), name)
    return str(value).lower()


def _duration(name: str, value: OptionValue) -> Any:
    seconds_of(str(value), name)
    return str(value)


def _flush_rows(name: str, value: OptionValue) -> Any:
    return _within(name, _count(name, value), FLUSH_ROWS)


def _flush_interval(name: str, value: OptionValue) -> Any:
    _within(f"{name} (seconds)", seconds_of(str(value), name), FLUSH_SECONDS)
    return str(value)


def _location(name: str, value: OptionValue) -> Any:
    """Checks the LOCATION of a namespace, the parent directory of its tables."""
    if not isinstance(value, str) or "$" in value:
        raise InvalidInputError(f"{name} = {value!r}: use a directory, without variables")
    return check_location(TableKind.SHARED, value)


def _days(name: str, value: OptionValue) -> Any:
    return _within(name, _count(name, value), RETENTION_DAYS)


def _boolean(name: str, value: OptionValue) -> Any:
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name} = {value!r}: use true or false")
    return value


def _count(name: str, value: OptionValue) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000_000:
        raise InvalidInputError(f"{name} = {value!r}: use a number from 1 to 10000000")
    return value


def _names(name: str, value: OptionValue) -> Any:
    names = [part.strip() for part in str(value).split(",")]
    if not isinstance(value, str) or not all(names):
        raise InvalidInputError(f"{name} = {value!r}: use column names separated by commas")
    return names


def _probability(name: str, value: OptionValue) -> Any:
    if isinstance(value, bool | str) or not 0 < value < 1:
        raise InvalidInputError(f"{name} = {value!r}: use a number between 0 and 1, for example 0.01")
    return float(value)


def check_column_options(table: str, tags: Mapping[str, str | None], columns: Iterable[Column]) -> None:
    """Raises if an option names a column that does not exist."""
    known = {fold(name) for name in (*(column.name for column in columns), SEQ)}
    for option in COLUMN_OPTIONS:
        for name in json.loads(tags.get(f"option.{option}") or "[]"):
            if fold(name) not in known:
                raise InvalidInputError(f"{table}: {option} names {name}, which does not exist")


def renamed_in_options(tags: Mapping[str, str], name: str, new_name: str | None) -> dict[str, str | None]:
    """Returns the options after a column was renamed or, with None, dropped."""
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
_NAMESPACE_OPTIONS: dict[str, Callable[[str, OptionValue], Any]] = {
    "flush_rows": _flush_rows,
    "flush_interval": _flush_interval,
    "deleted_retention": _retention,
    "location": _location,
    "retention_days": _days,
}
_STREAM_OPTIONS = {"retention": _duration, "ephemeral": _boolean, "max_buffer": _count}
