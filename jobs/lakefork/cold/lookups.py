"""Looks up rows of batches by key: footers and key columns of batches are kept, because files never change."""

import bisect
import threading
import uuid
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefork.cold.batch import FIELD_ID, leaves
from lakefork.model.tables import Column

KEPT_FILES = 2_000
LARGEST_SHARE = 4  # of what is kept, one entry may take this part
SEARCHED_TYPES = frozenset(("boolean", "int16", "int32", "int64", "varchar", "date", "uuid"))


V = TypeVar("V")


class UnsupportedError(Exception):
    """The batch is written in a way that needs conversions, or lies elsewhere: DuckDB reads it."""


@dataclass(frozen=True)
class _File:
    metadata: pq.FileMetaData
    fields: dict[int, tuple[pa.Field, int]]  # by column id: the field, and the Parquet column that it begins at


@dataclass(frozen=True)
class _Keys:
    """The keys of a row group, as stored; is_increasing: they can be searched by halves."""

    columns: tuple[pa.Array, ...]
    is_increasing: bool

    @property
    def size(self) -> int:
        return sum(int(column.nbytes) for column in self.columns)

    def find(self, key: Sequence[Any]) -> list[int]:
        """Returns the positions of a key."""
        if self.is_increasing:
            (values,), (value,) = self.columns, key
            place = bisect.bisect_left(range(len(values)), value, key=lambda at: values[at].as_py())
            return [place] if place < len(values) and values[place].as_py() == value else []
        pairs = zip(self.columns, key, strict=True)
        same = [pc.equal(values, pa.scalar(value, values.type)) for values, value in pairs]
        mask = same[0]
        for one in same[1:]:
            mask = pc.and_(mask, one)
        return list(pc.indices_nonzero(mask).to_pylist())


class _Kept(Generic[V]):
    """A cache by size in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> V | None:
        with self._lock:
            found = self._entries.get(name)
            if found is None:
                return None
            self._entries.move_to_end(name)
            return found[0]

    def keep(self, name: Hashable, value: V, size: int) -> None:
        """Keeps a value, unless it would displace most others."""
        with self._lock:
            if name in self._entries or size > self._max_bytes // LARGEST_SHARE:
                return
            self._entries[name] = value, size
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= self._entries.popitem(last=False)[1][1]


class KeyLookup:
    """For threads of one process. max_bytes: for columns and keys that are kept."""

    def __init__(self, max_bytes: int) -> None:
        self._files = _Kept[_File](KEPT_FILES)
        self._kept = _Kept[Any](max_bytes)

    def find(
        self, path: str, key_columns: Sequence[Column], key: Sequence[Any], columns: Sequence[Column]
    ) -> list[pa.Table]:
        """Returns the rows of a local batch with a key, each as a table of the columns by place.

        Raises UnsupportedError, OSError or ArrowException.
        """
        if "://" in path or any(column.type.name not in SEARCHED_TYPES for column in key_columns):
            raise UnsupportedError
        file = self._files.get(path) or self._open(path)
        stored = [value.bytes if isinstance(value, uuid.UUID) else value for value in key]
        return [
            self._row(path, file, group, place, columns)
            for group in range(file.metadata.num_row_groups)
            if _may_hold(file, group, key_columns[0], key[0])
            for place in self._keys_of(path, file, group, key_columns).find(stored)
        ]

    def _open(self, path: str) -> _File:
        metadata = pq.read_metadata(path)
        fields: dict[int, tuple[pa.Field, int]] = {}
        leaf = 0
        for field in metadata.schema.to_arrow_schema():
            if not field.metadata or FIELD_ID not in field.metadata:
                raise UnsupportedError
            fields[int(field.metadata[FIELD_ID])] = field, leaf
            leaf += leaves(field.type)
        file = _File(metadata, fields)
        self._files.keep(path, file, 1)
        return file

    def _keys_of(self, path: str, file: _File, group: int, key_columns: Sequence[Column]) -> _Keys:
        name = (path, group, tuple(column.column_id for column in key_columns))
        kept: _Keys | None = self._kept.get(name)
        if kept is not None:
            return kept
        read = _read(path, file, group, key_columns)
        columns = tuple(_searchable(read[column]) for column in key_columns)
        keys = _Keys(columns, len(columns) == 1 and _is_increasing(columns[0]))
        self._kept.keep(name, keys, keys.size)
        return keys

    def _row(self, path: str, file: _File, group: int, place: int, columns: Sequence[Column]) -> pa.Table:
        present = [column for column in columns if column.column_id in file.fields]
        if any(column.initial_default is not None for column in columns if column not in present):
            raise UnsupportedError
        values: dict[Column, pa.ChunkedArray] = {}
        for column in present:
            kept = self._kept.get((path, group, column.column_id))
            if kept is not None and kept.type.equals(column.type.arrow):
                values[column] = kept
        if missing := [column for column in present if column not in values]:
            read = _read(path, file, group, missing)
            for column, found in read.items():
                self._kept.keep((path, group, column.column_id), found, found.nbytes)
            values |= read
        arrays = [
            values[column].slice(place, 1) if column in values else pa.nulls(1, column.type.arrow) for column in columns
        ]
        return pa.Table.from_arrays(arrays, names=[str(number) for number in range(len(columns))])


def _may_hold(file: _File, group: int, column: Column, value: Any) -> bool:
    """Tells whether the statistics of a row group allow a value of its key."""
    if column.column_id not in file.fields or not isinstance(value, int) or isinstance(value, bool):
        return True
    found = file.metadata.row_group(group).column(file.fields[column.column_id][1]).statistics
    return found is None or not found.has_min_max or bool(found.min <= value <= found.max)


def _read(path: str, file: _File, group: int, columns: Sequence[Column]) -> dict[Column, pa.ChunkedArray]:
    """Returns columns of a row group, if the file has them in the types of now."""
    names = []
    for column in columns:
        field = file.fields[column.column_id][0] if column.column_id in file.fields else None
        if field is None or not field.type.equals(column.type.arrow):
            raise UnsupportedError
        names.append(field.name)
    with pq.ParquetFile(path, metadata=file.metadata) as parquet:
        rows = parquet.read_row_group(group, columns=names)
    return {column: rows.column(name) for column, name in zip(columns, names, strict=True)}


def _searchable(column: pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks()
    values = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    return values.storage.cast(pa.binary()) if isinstance(values, pa.ExtensionArray) else values


def _is_increasing(values: pa.Array) -> bool:
    return not values.null_count and bool(
        pc.all(pc.less(values.slice(0, len(values) - 1), values.slice(1)), min_count=0).as_py()
    )
