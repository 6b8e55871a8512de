"""BACKUP, RESTORE and SHOW BACKUP: the first two ask for a job, and answer at once."""

import json
import shlex
import uuid
from typing import Any

from psycopg.types.json import Jsonb

from lakefork.backups.access import open_place
from lakefork.backups.choice import Owner, choose_backup, find_backups, read_backup
from lakefork.backups.format import BackupManifest, split_place
from lakefork.backups.place import Place
from lakefork.catalog.backups import find_namespaces
from lakefork.catalog.catalogs import Catalog
from lakefork.catalog.connection import Connection
from lakefork.catalog.roots import installation_id
from lakefork.errors import NotFoundError
from lakefork.sql.parse.statements import BackupDatabase, RestoreDatabase, ShowBackup
from lakefork.sql.resources import Resources
from lakefork.sql.results import Rows, from_columns
from lakefork.sql.session import Role, Session
from lakefork.storage.paths import normal_path

TABLE_COLUMNS = [
    "backup_id", "catalog_name", "namespace", "table_name", "table_type", "rows", "files", "bytes", "taken_at",
    "snapshot_id", "base", "backup_bytes", "copied_bytes", "lakefork_version",
]  # fmt: skip


class Backups:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def backup(self, session: Session, statement: BackupDatabase) -> Rows:
        session.require(Role.ADMIN, "BACKUP DATABASE")
        with self._resources.catalog_of(session) as (connection, catalog):
            if statement.namespace is not None and not find_namespaces(
                connection, catalog.catalog_id, statement.namespace
            ):
                raise NotFoundError(f"namespace {statement.namespace} does not exist; SHOW NAMESPACES lists them")
            self._open(connection, catalog, statement.to)
            params = {
                "catalog": catalog.name, "namespace": statement.namespace, "to": statement.to,
                "incremental": statement.incremental,
            }  # fmt: skip
            return _request(connection, session, statement.text, "namespace_backup", params)

    def restore(self, session: Session, statement: RestoreDatabase) -> Rows:
        session.require(Role.ADMIN, "RESTORE DATABASE")
        with self._resources.catalog_of(session) as (connection, catalog):
            place, backup_id = self._open(connection, catalog, statement.source)
            source = statement.source
            if owner := _owner(connection, session, catalog):
                chosen = choose_backup(place, backup_id, statement.namespace, owner)
                source = f"{split_place(normal_path(source))[0]}/backups/{chosen.backup_id}"
            params = {
                "catalog": catalog.name, "namespace": statement.namespace, "from": source,
                "replace": statement.replace, "by_reference": statement.by_reference,
            }  # fmt: skip
            return _request(connection, session, statement.text, "namespace_restore", params)

    def show(self, session: Session, statement: ShowBackup) -> Rows:
        """What is in the backups at a place, or in one of them; the newest first."""
        session.require(Role.ADMIN, "SHOW BACKUP")
        with self._resources.catalog_of(session) as (connection, catalog):
            place, backup_id = self._open(connection, catalog, statement.path)
            owner = _owner(connection, session, catalog)
        if backup_id is not None:
            return from_columns(statement.text, TABLE_COLUMNS, _tables_of(read_backup(place, backup_id, owner)))
        manifests = find_backups(place, owner)
        rows = [row for manifest in reversed(manifests) for row in _tables_of(manifest)]
        return from_columns(statement.text, TABLE_COLUMNS, rows)

    def _open(self, connection: Connection, catalog: Catalog, path: str) -> tuple[Place, str | None]:
        return open_place(connection, catalog, path, self._resources.home, self._resources.storage)


def _owner(connection: Connection, session: Session, catalog: Catalog) -> Owner | None:
    """Admins have no access to other catalogs, nor to their backups; None: the operator has."""
    if session.role >= Role.SYSTEM:
        return None
    return Owner(installation_id(connection), catalog.name, catalog.begin_snapshot)


def _tables_of(manifest: BackupManifest) -> list[tuple[Any, ...]]:
    """One row per table; a namespace without tables has one too."""
    about = (
        manifest.taken_at, manifest.snapshot_id, manifest.base, manifest.bytes, manifest.copied_bytes,
        manifest.lakefork,
    )  # fmt: skip
    first = manifest.backup_id, manifest.catalog
    rows = [
        (*first, one.namespace, one.name, one.kind, one.rows, one.files, one.bytes, *about) for one in manifest.tables
    ]
    bare = sorted(set(manifest.namespaces) - {one.namespace for one in manifest.tables})
    return rows + [(*first, name, None, None, 0, 0, 0, *about) for name in bare]


def _request(connection: Connection, session: Session, text: str, job: str, params: dict[str, Any]) -> Rows:
    """Without Airflow nobody looks for requests: then the answer is the command that does it."""
    request_id = f"{job}/{uuid.uuid4().hex[:16]}"
    given = {name: value for name, value in params.items() if value not in (None, False)} | {"request": request_id}
    connection.execute(
        "SELECT lakefork.request_job(%s, %s, %s, %s, %s)",
        (request_id, job, params["catalog"], Jsonb(given), session.actor),
    )
    row = connection.execute("SELECT is_paused FROM lakefork.airflow_schedule() WHERE job_type = %s", (job,)).fetchone()
    runs = (
        f"DAG {job} runs it; system.jobs tells how it goes"
        if row is not None and not row["is_paused"]
        else f"run it with: lakefork run {job} --params {shlex.quote(json.dumps(given))}"
    )
    return from_columns(text, ["job_id", "status", "next"], [(request_id, "requested", runs)])
