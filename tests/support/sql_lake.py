"""Helpers for tests of SQL: a catalog with an engine, and batches as a flush would write them."""

import itertools
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefork.catalog.catalogs import Catalog, create_catalog, newest_snapshot
from lakefork.catalog.commits import Changes, commit
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.roots import add_root
from lakefork.cold.batch import write_batch
from lakefork.cold.batch_files import batch_layout
from lakefork.errors import LakeforkError
from lakefork.model.tables import USER_ID, TableDefinition
from lakefork.read.tables import FoundTable
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.parse.statements import TableName
from lakefork.sql.results import Affected, Rows
from lakefork.sql.session import Role, Session
from lakefork.storage.paths import path_part

_numbers = itertools.count()


@dataclass(frozen=True)
class SqlLake:
    engine: Engine
    dsn: str
    catalog: Catalog

    def session(self, user: str | None = None, role: Role | None = None) -> Session:
        """Without a user an admin, with one a user."""
        return Session(self.catalog.name, user, role or (Role.USER if user else Role.ADMIN))

    def run(self, text: str, *parameters: Any, user: str | None = None, role: Role | None = None) -> list[Any]:
        return self.engine.execute(self.session(user, role), text, parameters)

    def rows(
        self, text: str, *parameters: Any, user: str | None = None, role: Role | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of the last statement."""
        result = self.run(text, *parameters, user=user, role=role)[-1]
        assert isinstance(result, Rows)
        return result.rows

    def count(self, text: str, *parameters: Any, user: str | None = None, role: Role | None = None) -> int:
        """The affected rows of the last statement."""
        result = self.run(text, *parameters, user=user, role=role)[-1]
        assert isinstance(result, Affected)
        return result.affected_rows

    def find(self, name: str) -> FoundTable:
        """The table as the engine sees it now."""
        namespace, table = name.split(".")
        resources = self.engine._resources
        with resources.readers.transaction() as connection:
            return resources.lookup.find(connection, self.session(), TableName(namespace, table))

    def flush_by_hand(self, name: str, user: str | None = None, *, trim: bool = True, since: int = 0) -> int:
        """Moves the newest versions of one user's (or a shared table's) rows into a batch; returns its rows.

        since: only versions after this _seq.
        """
        found = self.find(name)
        definition = found.definition
        versions = self.rows(f"SELECT *, {USER_ID} FROM {name} WHERE _seq > {since} AND {USER_ID} = ?", user) if user else self.rows(
            f"SELECT * FROM {name} WHERE _seq > {since}"
        )  # fmt: skip
        columns = [*definition.columns, *definition.system_columns]
        with connect(self.dsn) as connection:
            number = _next_number(connection, definition)
            owner = "shared" if user is None else f"user_{path_part(user)}"
            self._publish(connection, definition, columns, versions, f"{owner}/batch-{number}.parquet", user)
            if trim:
                for hot in found.hot:
                    connection.execute(f"DELETE FROM {hot.qualified} WHERE {hot.of(user)}")
        return len(versions)

    def _publish(
        self,
        connection: Connection,
        definition: Any,
        columns: Sequence[Any],
        versions: list[tuple[Any, ...]],
        name: str,
        user: str | None,
    ) -> None:
        rows = pa.table(
            {column.name: _array([row[place] for row in versions], column.type) for place, column in enumerate(columns)}
        )
        layout = batch_layout(definition, 0.01)
        facts = write_batch(
            f"{definition.path}/{name}", rows.cast(layout.schema), layout, self.engine._resources.storage
        )
        changes = Changes()
        changes.add_batch(definition.table_id, name, facts, user_id=user)
        commit(connection, definition.catalog_id, newest_snapshot(connection), changes)


def allow_tests(connection: Connection) -> None:
    """LOCATION may name whatever a test makes: its directories and its S3 server's buckets."""
    for root in (tempfile.gettempdir(), *(f"s3://{bucket}" for bucket in ("lake", "archive", "no-such-bucket"))):
        add_root(connection, root)


@contextmanager
def open_lake(dsn: str, data_dir: Path, settings: Settings) -> Iterator[SqlLake]:
    """An empty catalog `main` with an SQL engine."""
    with connect(dsn) as connection:
        catalog = create_catalog(connection, "main", str(data_dir / "main"))
        allow_tests(connection)
    with Engine(settings, dsn) as engine:
        yield SqlLake(engine, dsn, catalog)


def new_name(start: str) -> str:
    """A name that no other test has."""
    return f"{start}{next(_numbers)}"


def refuse(lake: SqlLake, kind: type[LakeforkError], match: str, text: str, *parameters: Any, **who: Any) -> str:
    """The statement fails as it should, with one line; returns the line."""
    with pytest.raises(kind, match=match) as caught:
        lake.run(text, *parameters, **who)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def _array(values: list[Any], kind: Any) -> pa.Array:
    plain = [_plain(value) for value in values]
    if kind.element:
        storage = getattr(kind.element.arrow, "storage_type", kind.element.arrow)
        return pa.array(plain, pa.list_(storage)).cast(kind.arrow)
    return pa.array(plain, kind.arrow)


def _plain(value: Any) -> Any:
    """Arrow makes UUIDs of bytes only."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.bytes if isinstance(value, uuid.UUID) else value


def _next_number(connection: Connection, definition: TableDefinition) -> int:
    """Tables that were dropped had the same directory."""
    row = connection.execute(
        "SELECT count(*) AS files FROM public.ducklake_data_file WHERE table_id IN (SELECT t.table_id "
        "FROM public.ducklake_table t WHERE t.catalog_id = %s AND t.table_name = %s)",
        (definition.catalog_id, definition.name),
    ).fetchone()
    assert row is not None
    return int(row["files"])
