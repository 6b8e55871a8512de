"""Keeps the schema files of a catalog as the catalog says."""

import datetime
import logging

from lakefork.catalog.catalogs import Catalog
from lakefork.catalog.connection import Connection
from lakefork.catalog.roots import installation_id
from lakefork.cold import schema_files
from lakefork.cold.schema_files import TableEntry
from lakefork.errors import StorageError
from lakefork.queries import load
from lakefork.sql.resources import Resources
from lakefork.storage.listing import is_there
from lakefork.storage.markers import RootOwner, claim_root
from lakefork.tables import TableDefinition, fold

_SQL = load(__package__)
_log = logging.getLogger(__name__)


class SchemaWriter:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def write_after_change(self, connection: Connection, catalog: Catalog, namespace: str, table: str) -> None:
        """The change is committed: what cannot be written now is written by the next one, or by `lakefork schemas`."""
        try:
            self.write(connection, catalog, namespace, [table], newest_only=True)
        except (OSError, StorageError) as error:
            _log.warning(
                "schema files of %s.%s could not be written: %s; `lakefork schemas` writes them again",
                namespace,
                table,
                error,
            )

    def write(
        self,
        connection: Connection,
        catalog: Catalog,
        namespace: str,
        tables: list[str],
        *,
        newest_only: bool,
    ) -> None:
        """Writes the namespace's manifest and schema files of some tables as the catalog has them; one at a time."""
        resources = self._resources
        self._claim_configs(connection, catalog, namespace)
        with connection.transaction():
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended('schemas' || %s, %s))",
                (fold(namespace), catalog.catalog_id),
            )
            rows = connection.execute(
                _SQL["namespace_tables"], {"catalog_id": catalog.catalog_id, "namespace": namespace}
            ).fetchall()
            versions = {fold(row["table_name"]): row for row in rows}
            for table in tables:
                row = versions.get(fold(table))
                if row is None:
                    schema_files.remove_table_schemas(catalog.data_path, resources.storage, namespace, table)
                    continue
                wanted = list(zip(row["snapshots"], row["times"], strict=True))
                if newest_only:
                    wanted = wanted[self._first_missing(catalog, namespace, table, len(wanted)) - 1 :]
                schema_files.write_table_schemas(
                    catalog.data_path, resources.storage, self._definitions(catalog, row["table_id"], wanted)
                )
            if rows:
                namespace = rows[0]["namespace"]
            entries = [
                TableEntry(row["table_name"], row["kind"], len(row["snapshots"]), row["times"][0], row["times"][-1])
                for row in rows
            ]
            schema_files.write_manifest(catalog.data_path, resources.storage, namespace, entries)

    def _claim_configs(self, connection: Connection, catalog: Catalog, namespace: str) -> None:
        """A directory without a marker that has a manifest of this namespace is from before there were markers."""
        owner = RootOwner(installation_id(connection), catalog.catalog_id, 0)
        manifest = f"{catalog.data_path}/{schema_files.manifest_path(namespace)}"
        storage = self._resources.storage
        claim_root(
            schema_files.configs_root(catalog.data_path), owner, storage,
            lambda: [manifest] if is_there(manifest, storage) else [],
        )  # fmt: skip

    def _first_missing(self, catalog: Catalog, namespace: str, table: str, newest: int) -> int:
        """The newest version, or the first before it whose file somebody did not come to write."""
        first = newest
        while first > 1 and not schema_files.has_schema(
            catalog.data_path, self._resources.storage, namespace, table, first - 1
        ):
            first -= 1
        return first

    def _definitions(
        self, catalog: Catalog, table_id: int, snapshots: list[tuple[int, datetime.datetime]]
    ) -> list[tuple[TableDefinition, datetime.datetime]]:
        lookup = self._resources.lookup
        with self._resources.readers.transaction() as reading:
            return [
                (lookup.definition(reading, catalog.catalog_id, catalog.name, table_id, snapshot), moment)
                for snapshot, moment in snapshots
            ]
