"""Builds, parses and checks manifest.json, which describes each batch of a directory."""

import datetime
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FORMAT = 1
FILE_NAME = "manifest.json"
STATES = ("active", "compacting", "archived")

Bound = str | int | float | bool | None


@dataclass(frozen=True)
class Manifest:
    """A manifest to write."""

    path: str
    content: str

    @property
    def etag(self) -> str:
        return etag_of(self.content.encode())


def etag_of(content: bytes) -> str:
    """Returns the ETag as S3 computes it."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class RecordedDirectory:
    """The catalog's record of a directory; batches of its owner as from lakefork.manifest_batches."""

    path: str
    table_id: int
    user_id: str | None
    snapshot_id: int
    batches: Sequence[Mapping[str, Any]]

    @functools.cached_property
    def own(self) -> list[Mapping[str, Any]]:
        """Returns the batches in this directory; others, such as those that a fork shares, are in another manifest."""
        return [batch for batch in self.batches if (batch["path"] or "").rpartition("/")[0] == self.path]


@dataclass(frozen=True)
class ColumnBounds:
    column_id: int
    min: Bound
    max: Bound
    null_count: int | None


@dataclass(frozen=True)
class ManifestBatch:
    """A batch in a manifest. columns: by column id, which renames do not change."""

    file: str
    data_file_id: int
    schema_version: int | None
    status: str
    row_count: int
    size_bytes: int
    min_seq: int | None
    max_seq: int | None
    columns: Mapping[int, ColumnBounds]


@dataclass(frozen=True)
class ManifestContent:
    """A manifest that was read."""

    table_id: int
    user_id: str | None
    snapshot_id: int
    generated_at: str
    max_batch: int
    batches: tuple[ManifestBatch, ...]


@dataclass(frozen=True)
class BrokenManifest:
    """Content that cannot be parsed."""

    problem: str


@dataclass(frozen=True)
class Difference:
    """A difference from the catalog. kind: for counting; problem: for people."""

    kind: str
    problem: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.problem}"


def build_manifest(recorded: RecordedDirectory) -> Manifest:
    return Manifest(f"{recorded.path}/{FILE_NAME}", json.dumps(_document(recorded), ensure_ascii=False))


def _document(recorded: RecordedDirectory) -> dict[str, Any]:
    entries = [_entry(batch, recorded.path) for batch in recorded.own]
    return {
        "format": FORMAT,
        "table_id": recorded.table_id,
        "user_id": recorded.user_id,
        "snapshot_id": recorded.snapshot_id,
        "generated_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "max_batch": max((_number(entry["file"]) for entry in entries), default=-1),
        "batches": entries,
    }


def _entry(batch: Mapping[str, Any], directory: str) -> dict[str, Any]:
    return {
        "file": batch["path"].removeprefix(f"{directory}/"),
        "data_file_id": batch["data_file_id"],
        "schema_version": batch["schema_version"],
        "status": "active",
        "row_count": batch["row_count"],
        "size_bytes": batch["size_bytes"],
        "min_seq": batch["min_seq"],
        "max_seq": batch["max_seq"],
        "columns": {name: _column(column) for name, column in batch["columns"].items()},
    }


def _column(recorded: Sequence[Any]) -> dict[str, Any]:
    column_id, kind, _values, nulls, low, high = recorded
    return {"column_id": column_id, "min": _value(low, kind), "max": _value(high, kind), "null_count": nulls}


def _value(text: str | None, kind: str) -> Bound:
    """Converts a bound: numbers and booleans as such, everything else as the catalog's text."""
    if text is None:
        return None
    if kind.startswith("int"):
        return int(text)
    if kind.startswith("float"):
        return float(text) if text.lstrip("-") != "inf" else text
    if kind == "boolean":
        return text == "1"
    return text


def _number(file: str) -> int:
    digits = file.removeprefix("batch-").removesuffix(".parquet")
    return int(digits) if digits.isdecimal() else -1


def read_manifest(content: bytes | str) -> ManifestContent | BrokenManifest:
    """Parses a manifest; never raises, because manifests are optional."""
    try:
        text = content.decode() if isinstance(content, bytes) else content
        return _parse(json.loads(text))
    except _MalformedError as error:
        return BrokenManifest(str(error))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or numbers or nesting beyond the limits
        return BrokenManifest(f"it is not JSON: {_short(str(error).splitlines()[0])}")


class _MalformedError(Exception):
    pass


def _parse(document: Any) -> ManifestContent:
    fields = _Fields(document, "it")
    if (found := fields.take("format", int)) != FORMAT:
        raise _MalformedError(f"it has format {_short(found)}, expected {FORMAT}")
    batches = tuple(_parse_batch(one, index) for index, one in enumerate(fields.take("batches", list)))
    for name in ("file", "data_file_id"):
        if len({getattr(batch, name) for batch in batches}) < len(batches):
            raise _MalformedError(f"two of its batches have the same {name}")
    return ManifestContent(
        fields.take("table_id", int), fields.take("user_id", str, optional=True), fields.take("snapshot_id", int),
        fields.take("generated_at", str), fields.take("max_batch", int), batches,
    )  # fmt: skip


def _parse_batch(entry: Any, index: int) -> ManifestBatch:
    fields = _Fields(entry, f"batch {index}")
    columns = [_parse_column(one, index) for one in fields.take("columns", dict).values()]
    by_id = {column.column_id: column for column in columns}
    if len(by_id) < len(columns):
        raise _MalformedError(f"batch {index} has a column twice")
    batch = ManifestBatch(
        fields.take("file", str), fields.take("data_file_id", int), fields.take("schema_version", int, optional=True),
        fields.take("status", str), fields.take("row_count", int), fields.take("size_bytes", int),
        fields.take("min_seq", int, optional=True), fields.take("max_seq", int, optional=True), by_id,
    )  # fmt: skip
    if batch.status not in STATES:
        raise _MalformedError(f"batch {index} has the status {_short(batch.status)}")
    return batch


def _parse_column(entry: Any, index: int) -> ColumnBounds:
    fields = _Fields(entry, f"a column of batch {index}")
    return ColumnBounds(
        fields.take("column_id", int), fields.take("min", str, int, float, bool, optional=True),
        fields.take("max", str, int, float, bool, optional=True), fields.take("null_count", int, optional=True),
    )  # fmt: skip


class _Fields:
    """A JSON object with typed fields; true is not a number here."""

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, dict):
            raise _MalformedError(f"{what} is not an object")
        self._value = value
        self._what = what

    def take(self, name: str, *types: type, optional: bool = False) -> Any:
        if name not in self._value:
            raise _MalformedError(f"{self._what} has no {name}")
        value = self._value[name]
        if type(value) not in types and not (optional and value is None):
            raise _MalformedError(f"{self._what} has {name} = {_short(value)}")
        return value


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"
    text = repr(value) if not isinstance(value, str) else value
    return text if len(text) <= 80 else f"{text[:80]}…"


def check_manifest(found: ManifestContent | BrokenManifest, recorded: RecordedDirectory) -> list[Difference]:
    """Returns the differences from the catalog; none: the manifest is valid."""
    if isinstance(found, BrokenManifest):
        return [Difference("broken manifest", found.problem)]
    expected = _parse(_document(recorded))
    return [*_differing(found, expected, _HEAD), *_differing_batches(found, expected, recorded)]


_HEAD = {
    "table_id": "wrong table",
    "user_id": "wrong user",
    "snapshot_id": "stale manifest",
    "max_batch": "wrong number",
}
_FACTS = {
    "row_count": "wrong row count", "size_bytes": "wrong size", "data_file_id": "wrong number",
    "schema_version": "wrong number", "status": "wrong status", "min_seq": "wrong statistics",
    "max_seq": "wrong statistics",
}  # fmt: skip


def _differing(found: object, expected: object, kinds: Mapping[str, str], where: str = "") -> Iterator[Difference]:
    """Compares fields. kinds: by field name, the kind of its difference."""
    for name, kind in kinds.items():
        says, should = getattr(found, name), getattr(expected, name)
        if says != should:
            yield Difference(kind, f"{where}{name} is {_short(says)}, the catalog has {_short(should)}")


def _differing_batches(
    found: ManifestContent, expected: ManifestContent, recorded: RecordedDirectory
) -> Iterator[Difference]:
    listed = {batch.file: batch for batch in found.batches}
    for batch, source in zip(expected.batches, recorded.own, strict=True):
        entry = listed.pop(batch.file, None)
        if entry is None:
            yield Difference("missing batch", f"{batch.file} is not listed")
        else:
            yield from _differing(entry, batch, _FACTS, f"{batch.file}: ")
            yield from _differing_columns(entry, batch, source)
    for file in listed:
        yield Difference("extra batch", f"{_short(file)} is listed but not in the catalog")


def _differing_columns(
    found: ManifestBatch, expected: ManifestBatch, source: Mapping[str, Any]
) -> Iterator[Difference]:
    """Compares columns by id. Dropped columns may still be listed; their ids are never reused."""
    texts = {column_id: {"min": low, "max": high} for column_id, *_, low, high in source["columns"].values()}
    for column_id, should in expected.columns.items():
        says = found.columns.get(column_id)
        where = f"{expected.file}: column {column_id}"
        if says is None:
            yield Difference("wrong statistics", f"{where} is not listed")
            continue
        if says.null_count != should.null_count:
            yield Difference(
                "wrong statistics", f"{where}: null_count is {_short(says.null_count)}, not {should.null_count}"
            )
        for name in ("min", "max"):
            bound, text = getattr(says, name), texts[column_id][name]
            if not _same_bound(bound, getattr(should, name), text):
                yield Difference("wrong statistics", f"{where}: {name} is {_short(bound)}, not {_short(text)}")


def _same_bound(found: Bound, expected: Bound, text: str | None) -> bool:
    """Compares bounds; a column may have been widened since, so that a number became text."""
    if found is None or expected is None or isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    return found == expected or (isinstance(found, int | float) and isinstance(expected, str) and str(found) == text)
