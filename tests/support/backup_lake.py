"""Helpers for tests of backups: runs the jobs in this process, and reads tables without the code under test."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lakefork.backups.format import BackupManifest, file_path
from lakefork.backups.place import Place
from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.model.params import NamespaceBackupParams, NamespaceRestoreParams
from lakefork.settings import Settings
from lakefork.sql.session import Role, Session
from lakefork.storage import StorageOptions
from lakefork.transfer.backup.restore_run import run_namespace_restore
from lakefork.transfer.backup.run import run_namespace_backup
from lakefork.transfer.backup.verify import Verified, verify_backup
from support.flush_lake import FlushLake

Row = tuple[Any, ...]


@dataclass
class BackupLake:
    flush_lake: FlushLake
    place: str

    def backup(
        self, to: str | None = None, run_id: str | None = None, settings: Settings | None = None, **params: Any
    ) -> dict[str, Any]:
        with self.flush_lake.context(run_id, settings, "namespace_backup") as context:
            given = {"namespace": "app", "to": to or self.place, **params}
            return run_namespace_backup(context, NamespaceBackupParams(**given))

    def restore(self, from_: str | None = None, run_id: str | None = None, **params: Any) -> dict[str, Any]:
        with self.flush_lake.context(run_id, None, "namespace_restore") as context:
            given = {"from": from_ or self.place, **params}
            return run_namespace_restore(context, NamespaceRestoreParams(**given))

    @property
    def lines(self) -> list[str]:
        return self.flush_lake.lines

    def run(self, text: str, *parameters: Any, user: str | None = None, catalog: str = "main") -> list[Any]:
        session = Session(catalog, user, Role.USER if user else Role.ADMIN)
        return self.flush_lake.lake.engine.execute(session, text, parameters)

    def rows(self, text: str, *parameters: Any, user: str | None = None, catalog: str = "main") -> list[Row]:
        return list(self.run(text, *parameters, user=user, catalog=catalog)[-1].rows)

    def state(self, namespace: str = "app", catalog: str = "main") -> dict[str, list[Row]]:
        """All that readers can see of a namespace's tables: newest versions with _seq, deleted ones too, definitions."""
        found: dict[str, list[Row]] = {}
        for _, table, kind, _, policy in self.rows(f'SHOW TABLES IN "{namespace}"', catalog=catalog):
            described = [
                row
                for row in self.rows(f'DESCRIBE TABLE "{namespace}"."{table}"', catalog=catalog)
                if row[0] == "column"
            ]
            found[f"{table} defined"] = [(kind, policy), *described]
            if kind != "STREAM":
                owner = ", _user_id" if kind == "USER" else ""
                selected = self.rows(
                    f'SELECT *{owner} FROM "{namespace}"."{table}" WHERE _seq > 0 ORDER BY _seq', catalog=catalog
                )
                found[table] = sorted(selected, key=repr)
        return found

    def create_catalog(self, name: str) -> None:
        with connect(self.flush_lake.lake.dsn) as connection:
            path = Path(self.flush_lake.lake.catalog.data_path).parent / name
            create_catalog(connection, name, str(path))

    def fsck(self) -> list[Row]:
        """What breaks the catalog's invariants."""
        return self.sql("SELECT * FROM lakefork.fsck(NULL)")

    def verify(self, backup_id: str, **how: Any) -> Verified:
        return verify_backup(Place(self.place, StorageOptions()), backup_id, **how)

    def manifest(self, backup_id: str) -> BackupManifest:
        return Place(self.place, StorageOptions()).read_manifest(backup_id)

    def digests(self, backup_id: str, *, batches_only: bool = False) -> list[str]:
        """Of all files that a backup needs, by what its manifest and lists say."""
        manifest = self.manifest(backup_id)
        lists = [table.batches.digest for table in manifest.tables if table.batches]
        batches = [
            digest for one in lists for digest in pq.read_table(file_path(self.place, one))["digest"].to_pylist()
        ]
        return (
            sorted(batches)
            if batches_only
            else [manifest.definitions.digest, manifest.documents.digest, *lists, *batches]
        )

    def files(self) -> list[Path]:
        return sorted(path for path in Path(self.place).rglob("*") if path.is_file())

    def sql(self, query: str, *parameters: Any) -> list[Row]:
        return self.flush_lake.sql(query, *parameters)
