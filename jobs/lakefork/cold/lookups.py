"""Looks up rows of batches by key: footers and key columns of batches are kept, because files never change."""

import bisect
import threading
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefork.cold.batch import FIELD_ID, leaves
from lakefork.model.tables import Column

KEPT_FILES = 2_000
KEPT_KEY_BYTES = 64 << 20
SEARCHED_TYPES = frozenset(("boolean", "int16", "int32", "int64", "varchar", "date", "uuid"))


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


class KeyLookup:
    """For threads of one process."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._keys: OrderedDict[tuple[str, int, tuple[int, ...]], _Keys] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

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
        found = []
        for group in range(file.metadata.num_row_groups):
            if not _may_hold(file, group, key_columns[0], key[0]):
                continue
            for place in self._keys_of(path, file, group, key_columns).find(stored):
                found.append(_row(path, file, group, place, columns))
        return found

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
        with self._lock:
            self._files[path] = file
            while len(self._files) > KEPT_FILES:
                self._files.popitem(last=False)
        return file

    def _keys_of(self, path: str, file: _File, group: int, key_columns: Sequence[Column]) -> _Keys:
        name = (path, group, tuple(column.column_id for column in key_columns))
        with self._lock:
            kept = self._keys.get(name)
            if kept is not None:
                self._keys.move_to_end(name)
                return kept
        rows = _read(path, file, group, key_columns)
        columns = tuple(_searchable(column) for column in rows.columns)
        keys = _Keys(columns, len(columns) == 1 and _is_increasing(columns[0]))
        with self._lock:
            if name not in self._keys and keys.size <= KEPT_KEY_BYTES:
                self._keys[name] = keys
                self._bytes += keys.size
            while self._bytes > KEPT_KEY_BYTES:
                self._bytes -= self._keys.popitem(last=False)[1].size
        return keys


def _may_hold(file: _File, group: int, column: Column, value: Any) -> bool:
    """Tells whether the statistics of a row group allow a value of its key."""
    if column.column_id not in file.fields or not isinstance(value, int) or isinstance(value, bool):
        return True
    found = file.metadata.row_group(group).column(file.fields[column.column_id][1]).statistics
    return found is None or not found.has_min_max or bool(found.min <= value <= found.max)


def _row(path: str, file: _File, group: int, place: int, columns: Sequence[Column]) -> pa.Table:
    present = [column for column in columns if column.column_id in file.fields]
    if any(column.initial_default is not None for column in columns if column not in present):
        raise UnsupportedError
    rows = _read(path, file, group, present).slice(place, 1)
    values = dict(zip(present, rows.columns, strict=True))
    arrays = [values[column] if column in values else pa.nulls(1, column.type.arrow) for column in columns]
    return pa.Table.from_arrays(arrays, names=[str(number) for number in range(len(columns))])


def _read(path: str, file: _File, group: int, columns: Sequence[Column]) -> pa.Table:
    """Returns columns of a row group in the order asked for, if the file has them in the types of now."""
    fields = []
    for column in columns:
        field = file.fields[column.column_id][0] if column.column_id in file.fields else None
        if field is None or not field.type.equals(column.type.arrow):
            raise UnsupportedError
        fields.append(field)
    with pq.ParquetFile(path, metadata=file.metadata) as parquet:
        return parquet.read_row_group(group, columns=[field.name for field in fields]).select(
            [field.name for field in fields]
        )


def _searchable(column: pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks()
    values = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    return values.storage.cast(pa.binary()) if isinstance(values, pa.ExtensionArray) else values


def _is_increasing(values: pa.Array) -> bool:
    return not values.null_count and bool(
        pc.all(pc.less(values.slice(0, len(values) - 1), values.slice(1)), min_count=0).as_py()
    )
