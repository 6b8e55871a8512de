"""Rows of batches by key: the lists of batches with their bounds are kept for as long as a table has the same files."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from lakefork.cold.lookups import KeyLookup, UnsupportedError
from lakefork.cold.statistics import bound_parser
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.points import files_query
from lakefork.model.tables import DELETED, SEQ, Column, TableDefinition
from lakefork.read.batches import list_batches

KEPT_LISTS = 5_000
MAX_BATCHES_TO_LOOK_AT = 100
Files = tuple[int, ...]  # what check_plan says of a table's files


class _Bounded(NamedTuple):
    """A batch with the bounds of the first key column; None: unknown."""

    path: str
    low: Any
    high: Any
    is_empty: bool

    def may_hold(self, value: Any) -> bool:
        if self.is_empty:
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


@dataclass(frozen=True)
class _Listed:
    files: Files
    batches: tuple[_Bounded, ...]


class BatchLookup:
    """Finds the newest version of a key in batches, in this process: nothing of it was written by users."""

    def __init__(self, transaction: Callable[[], AbstractContextManager[ArrowConnection]], max_bytes: int) -> None:
        self._transaction = transaction
        self._lists: OrderedDict[tuple[Any, ...], _Listed] = OrderedDict()
        self._keys = KeyLookup(max_bytes)
        self._lock = threading.Lock()

    def newest(
        self,
        definition: TableDefinition,
        owner: str | None,
        files: Files,
        key: Sequence[Any],
        columns: Sequence[Column],
    ) -> pa.Table | None:
        """Returns the newest version, with _seq, _deleted and the columns by place; a table without rows if none.

        None: the table has other files by now. Raises UnsupportedError if only DuckDB can tell.
        """
        batches = self._batches(definition, owner, files)
        if batches is None:
            return None
        candidates = [batch for batch in batches if batch.may_hold(key[0])]
        if len(candidates) > MAX_BATCHES_TO_LOOK_AT:
            raise UnsupportedError
        system = {column.name: column for column in definition.system_columns}
        wanted = [system[SEQ], system[DELETED], *columns]
        found: list[pa.Table] = []
        try:
            for batch in candidates:
                found += self._keys.find(batch.path, definition.key, key, wanted)
        except (OSError, KeyError, pa.ArrowException) as error:
            raise UnsupportedError from error
        return max(found, key=lambda row: row.column(0)[0].as_py(), default=pa.table({}))

    def _batches(self, definition: TableDefinition, owner: str | None, files: Files) -> tuple[_Bounded, ...] | None:
        name = (*definition.ref, definition.definition_snapshot, owner)
        with self._lock:
            kept = self._lists.get(name)
            if kept is not None and kept.files == files:
                self._lists.move_to_end(name)
                return kept.batches
        listed = self._list(definition, owner)
        with self._lock:
            self._lists[name] = listed
            while len(self._lists) > KEPT_LISTS:
                self._lists.popitem(last=False)
        return listed.batches if listed.files == files else None

    def _list(self, definition: TableDefinition, owner: str | None) -> _Listed:
        """Lists the batches, and in the same snapshot what tells when there are others."""
        parse = bound_parser(definition.key[0].type)
        with self._transaction() as connection:
            row = connection.query(files_query(definition)).to_pylist()[0]
            batches = list_batches(connection, definition, owner=owner)
        bounded = []
        for batch in batches:
            bounds = batch.bounds.get(definition.key[0].column_id)
            low, high = (None, None) if bounds is None else (parse(bounds.low), parse(bounds.high))
            bounded.append(_Bounded(batch.path, low, high, bounds is not None and bounds.only_nulls))
        return _Listed(tuple(row["files"] or ()), tuple(bounded))
