"""Keeps schema files in sync: a note is made before a change, files are written after it, then the note is removed."""

import datetime
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.catalogs import Catalog, list_catalogs
from lakefork.catalog.connection import Connection
from lakefork.catalog.roots import installation_id
from lakefork.cold import schema_files
from lakefork.cold.schema_files import TableEntry
from lakefork.errors import StorageError, one_line
from lakefork.model.tables import TableDefinition, definition_from_json, fold
from lakefork.queries import load
from lakefork.storage import StorageOptions
from lakefork.storage.listing import path_exists
from lakefork.storage.markers import RootOwner, claim_root

WHOLE_NAMESPACE = ""  # in place of a table
WRITTEN_AT_ONCE = 50  # tables, where nothing was written yet, as in a fork; more are left to manifest_rebuild
AGAIN = "DESCRIBE TABLE, the next ALTER TABLE, manifest_rebuild and `lakefork schemas` try again"
_SQL = load(__package__)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SchemaNote:
    """A change whose files must be written; noted_at distinguishes it from later changes of the table."""

    catalog: Catalog
    namespace: str
    table: str
    noted_at: datetime.datetime

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}" if self.table else f"namespace {self.namespace}"


class SchemaWriter:
    def __init__(self, storage: StorageOptions) -> None:
        self._storage = storage

    def note(
        self, connection: Connection, catalog: Catalog, namespace: str, table: str = WHOLE_NAMESPACE
    ) -> SchemaNote:
        """Makes a note before a change is committed, which stays if the writer is interrupted."""
        row = connection.execute(_SQL["note_schema"], _key(catalog, namespace, table)).fetchone()
        assert row is not None  # noqa: S101 - INSERT … RETURNING
        return SchemaNote(catalog, namespace, table, row["noted_at"])

    def write_noted(self, connection: Connection, noted: SchemaNote) -> str | None:
        """Returns what went wrong: the change holds all the same, and the note stays."""
        try:
            self.write(connection, noted.catalog, noted.namespace, [noted.table] if noted.table else [])
        except (OSError, StorageError) as error:
            problem = f"schema files of {noted} could not be written: {one_line(str(error))}; {AGAIN}"
            _log.warning(problem)
            connection.execute(_SQL["keep_schema_note"], {**_of(noted), "problem": problem})
            return problem
        connection.execute(_SQL["forget_schema_note"], _of(noted))
        return None

    def repair(self, connection: Connection, catalog: Catalog, namespace: str, table: str) -> str | None:
        """Writes what is missing of one table; returns what went wrong."""
        found = self._pending(connection, catalog.name, _key(catalog, namespace, table))
        if not found and self._has(catalog, namespace, table):
            return None
        return self.write_noted(connection, found[0] if found else self.note(connection, catalog, namespace, table))

    def repair_all(self, connection: Connection, catalog: str | None) -> tuple[int, list[str]]:
        """Writes whatever others left; how many tables and namespaces that were, and what went wrong."""
        found = self._pending(connection, catalog, {"namespace": None, "table": None})
        problems = [problem for noted in found if (problem := self.write_noted(connection, noted))]
        return len(found) - len(problems), problems

    def rewrite(self, connection: Connection, catalog: Catalog) -> int:
        """Writes all schema files of a catalog; returns the number of namespaces."""
        rows = connection.execute(_SQL["namespaces_with_tables"], {"catalog_id": catalog.catalog_id}).fetchall()
        for row in rows:
            self.write(connection, catalog, row["namespace"], row["tables"], newest_only=False)
        connection.execute(_SQL["forget_schema_notes"], {"catalog_id": catalog.catalog_id})
        return len(rows)

    def write(
        self,
        connection: Connection,
        catalog: Catalog,
        namespace: str,
        tables: Sequence[str],
        *,
        newest_only: bool = True,
    ) -> None:
        """Writes the namespace's manifest and schema files of some tables (none: all that are missing) as the catalog
        has them; one at a time.
        """
        root = catalog.data_path
        self._claim_configs(connection, catalog, namespace)
        with connection.transaction():
            connection.execute(
                "SELECT pg_advisory_xact_lock(lakefork.schema_files_lock(%s, %s))",
                (catalog.catalog_id, fold(namespace)),
            )
            rows = connection.execute(
                _SQL["namespace_tables"], {"catalog_id": catalog.catalog_id, "namespace": namespace}
            ).fetchall()
            if not rows:
                self._remove(root, namespace, tables)
                return
            versions = {fold(row["table_name"]): row for row in rows if row["table_name"] is not None}
            for table in self._with_missing(connection, catalog, namespace, tables, versions):
                if row := versions.get(fold(table)):
                    self._write_table(connection, catalog, row, newest_only=newest_only)
                else:
                    schema_files.remove_table_schemas(root, self._storage, namespace, table)
            entries = [_entry(row) for row in versions.values()]
            schema_files.write_manifest(root, self._storage, rows[0]["namespace"], entries)

    def _with_missing(
        self, connection: Connection, catalog: Catalog, namespace: str, tables: Sequence[str], versions: Collection[str]
    ) -> list[str]:
        """Returns the tables; if nothing of the namespace is written yet, all its tables, which its manifest lists."""
        manifest = f"{catalog.data_path}/{schema_files.manifest_path(namespace)}"
        if tables and path_exists(manifest, self._storage):
            return list(tables)
        others = sorted(set(versions) - {fold(table) for table in tables})
        if tables and len(others) > WRITTEN_AT_ONCE:
            self.note(connection, catalog, namespace)
            return list(tables)
        return [*tables, *others]

    def _write_table(self, connection: Connection, catalog: Catalog, row: dict[str, Any], *, newest_only: bool) -> None:
        first = self._first_missing(catalog, row) if newest_only else 1
        found = connection.execute(
            _SQL["definitions_at"],
            {"catalog_id": catalog.catalog_id, "table_id": row["table_id"], "snapshots": row["snapshots"][first - 1 :]},
        )
        definitions: list[TableDefinition] = [
            definition_from_json(catalog.catalog_id, catalog.name, one["snapshot"], one["definition"]) for one in found
        ]
        times = row["times"][first - 1 :]
        schema_files.write_table_schemas(catalog.data_path, self._storage, list(zip(definitions, times, strict=True)))

    def _first_missing(self, catalog: Catalog, row: dict[str, Any]) -> int:
        """Returns the newest version, or the first before it whose file was not written."""
        first = len(row["snapshots"])
        while first > 1 and not self._has(catalog, row["namespace"], row["table_name"], first - 1):
            first -= 1
        return first

    def _has(self, catalog: Catalog, namespace: str, table: str, version: int | None = None) -> bool:
        return path_exists(f"{catalog.data_path}/{schema_files.schema_path(namespace, table, version)}", self._storage)

    def _remove(self, root: str, namespace: str, tables: Sequence[str]) -> None:
        """Of a namespace that was dropped."""
        for table in tables:
            schema_files.remove_table_schemas(root, self._storage, namespace, table)
        schema_files.remove_manifest(root, self._storage, namespace)

    def _claim_configs(self, connection: Connection, catalog: Catalog, namespace: str) -> None:
        """Claims the directory; one with a manifest of this namespace but no marker predates markers."""
        owner = RootOwner(installation_id(connection), catalog.catalog_id, 0)
        manifest = f"{catalog.data_path}/{schema_files.manifest_path(namespace)}"
        claim_root(
            schema_files.configs_root(catalog.data_path), owner, self._storage,
            lambda: [manifest] if path_exists(manifest, self._storage) else [],
        )  # fmt: skip

    def _pending(self, connection: Connection, catalog: str | None, key: dict[str, Any]) -> list[SchemaNote]:
        """Returns notes that no other writer is working on."""
        rows = connection.execute(_SQL["pending_schemas"], {**key, "catalog": catalog}).fetchall()
        catalogs = {one.catalog_id: one for one in list_catalogs(connection)} if rows else {}
        return [
            SchemaNote(catalogs[row["catalog_id"]], row["namespace"], row["table_name"], row["noted_at"])
            for row in rows
            if row["catalog_id"] in catalogs
        ]


def _key(catalog: Catalog, namespace: str, table: str) -> dict[str, Any]:
    return {"catalog_id": catalog.catalog_id, "namespace": fold(namespace), "table": fold(table)}


def _of(noted: SchemaNote) -> dict[str, Any]:
    return {**_key(noted.catalog, noted.namespace, noted.table), "noted_at": noted.noted_at}


def _entry(row: dict[str, Any]) -> TableEntry:
    return TableEntry(row["table_name"], row["kind"], len(row["snapshots"]), row["times"][0], row["times"][-1])
