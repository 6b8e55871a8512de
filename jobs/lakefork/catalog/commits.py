"""Commits: requirements and changes, sent to Postgres in one round trip."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psycopg.types.json import Jsonb

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.model.tables import TableRef
from lakefork.queries import load

_SQL = load(__package__)


class BatchFacts(Protocol):
    """What the catalog records of a batch; implemented in cold/statistics.py."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def footer_size(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def statistics(self) -> str: ...


class Changes:
    """Rows to add and to end. New objects have negative ids until the commit gives them real ones."""

    def __init__(self) -> None:
        self._new: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._ended: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._requires: dict[str, list[int]] = defaultdict(list)
        self._catalog_ids = 0
        self._file_ids = 0

    def new_id(self) -> int:
        """A placeholder for a new namespace, table, view, macro or partition."""
        self._catalog_ids += 1
        return -self._catalog_ids

    def new_file_id(self) -> int:
        """A placeholder for a new data file, delete file or column mapping."""
        self._file_ids += 1
        return -self._file_ids

    def add(self, entity: str, **row: Any) -> None:
        self._new[entity].append(row)

    def add_batch(self, table_id: int, path: str, facts: BatchFacts, *, user_id: str | None = None) -> int:
        """Adds a Parquet file below the table's path, with the facts of its footer and its owner; returns its id."""
        file_id = self.new_file_id()
        self.add(
            "ducklake_data_file", data_file_id=file_id, table_id=table_id, path=path, path_is_relative=True,
            record_count=facts.record_count, file_size_bytes=facts.size_bytes, footer_size=facts.footer_size,
            statistics=facts.statistics,
        )  # fmt: skip
        if user_id is not None:
            self.add(
                "ducklake_file_partition_value", data_file_id=file_id, table_id=table_id, partition_key_index=0,
                partition_value=user_id,
            )  # fmt: skip
        return file_id

    def end(self, entity: str, **key: Any) -> None:
        self._ended[entity].append(key)

    def require_table_unchanged(self, table_id: int) -> None:
        """The commit fails if the table's definition changed after the base snapshot."""
        self._requires["tables"].append(table_id)

    def as_json(self) -> dict[str, Any]:
        return {
            "catalog_ids": self._catalog_ids,
            "file_ids": self._file_ids,
            **({"new": self._new} if self._new else {}),
            **({"end": self._ended} if self._ended else {}),
            **({"requires": self._requires} if self._requires else {}),
        }


@dataclass(frozen=True)
class Committed:
    """The outcome of a commit; replayed: an earlier commit with the same key did it."""

    snapshot_id: int
    schema_version: int
    first_catalog_id: int
    first_file_id: int
    replayed: bool


def commit(
    connection: Connection,
    catalog_id: int,
    base_snapshot: int,
    changes: Changes,
    *,
    author: str | None = None,
    message: str | None = None,
    commit_key: str | None = None,
    extra: str | None = None,
) -> Committed:
    """Publishes the changes, or raises ConflictError if a requirement has changed since the base snapshot.

    Inside a transaction of the caller it must be the last statement: all other commits wait until that ends.
    """
    with domain_errors():
        row = connection.execute(
            _SQL["commit"],
            {
                "catalog_id": catalog_id,
                "base_snapshot": base_snapshot,
                "changes": Jsonb(changes.as_json()),
                "author": author,
                "message": message,
                "commit_key": commit_key,
                "extra": extra,
            },
            prepare=True,
        ).fetchone()
    assert row is not None  # noqa: S101 - the function returns one row or raises
    return Committed(**row)


def note_clean(connection: Connection, tables: Sequence[TableRef]) -> None:
    """For after a publish is committed: stock DuckDB is shown it if it left the table clean (functions/clean.sql)."""
    connection.execute(
        "SELECT lakefork.note_last_publish(c, t) FROM unnest(%s::bigint[], %s::bigint[]) AS r (c, t)",
        ([one for one, _ in tables], [one for _, one in tables]),
    )
