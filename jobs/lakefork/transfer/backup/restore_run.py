"""namespace_restore: stages and checks all of a backup, which then appears in a catalog by one commit."""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg

from lakefork.backups.access import open_place
from lakefork.backups.choice import choose_backup
from lakefork.backups.format import BackupManifest, DamagedBackupError, parse_list
from lakefork.backups.place import Place, names_of
from lakefork.catalog.backups import reading_lease
from lakefork.catalog.catalogs import Catalog, find_catalog, newest_snapshot
from lakefork.catalog.commits import note_clean
from lakefork.catalog.jobs import take_request
from lakefork.catalog.leases import require_leases
from lakefork.catalog.restores import (
    Publication,
    Restored,
    commit_restore,
    existing_namespaces,
    file_contents,
    lock_definitions,
    restored_before,
    restored_tables,
    tables_in,
)
from lakefork.catalog.roots import installation_id, known_files
from lakefork.errors import ConflictError, InvalidInputError, LakeforkError
from lakefork.model.params import NamespaceRestoreParams
from lakefork.model.tables import TableRef, fold
from lakefork.spark.job import JobContext
from lakefork.storage import make_durable
from lakefork.storage.markers import RootOwner, claim_root
from lakefork.storage.paths import place as place_of
from lakefork.transfer.backup.executors import in_megabytes, run_on_executors
from lakefork.transfer.backup.restore_finish import note_schema_files, write_manifests_of, write_schema_files
from lakefork.transfer.backup.restore_plan import (
    ListedFile,
    RestorePlan,
    StagedFile,
    TableToRestore,
    choose_namespaces,
    fetch_tasks,
    plan_restore,
    require_free_names,
)
from lakefork.transfer.backup.restore_staging import discard_dead_restores, discard_staged, stage_plan
from lakefork.transfer.backup.restore_task import fetch_files
from lakefork.transfer.backup.subject import digest_of_contents
from lakefork.transfer.backup.task import Destination

LOCK_SECONDS = 10
AT_ONCE = 16


@dataclass(frozen=True)
class Target:
    """Where a backup goes. names: by those in the backup; replaced: namespaces, and their tables, that it replaces."""

    catalog: Catalog
    names: dict[str, str]
    replaced: list[int]
    replaced_tables: list[dict[str, Any]]
    base_snapshot: int


def run_namespace_restore(context: JobContext, params: NamespaceRestoreParams) -> dict[str, Any]:
    take_request(context.connection, params.request)
    catalog = find_catalog(context.connection, params.catalog)
    place, backup_id = open_place(
        context.connection, catalog, params.from_, str(context.settings.home), context.storage
    )
    manifest = choose_backup(place, backup_id, params.namespace)
    context.take_lease(reading_lease(place_of(place.path), manifest.backup_id, context.run.job_id))
    return _Restore(context, params, catalog, place, manifest).run()


class _Restore:
    def __init__(
        self,
        context: JobContext,
        params: NamespaceRestoreParams,
        catalog: Catalog,
        place: Place,
        manifest: BackupManifest,
    ) -> None:
        self._context = context
        self._params = params
        self._catalog = catalog
        self._place = place
        self._manifest = manifest
        self._started = time.monotonic()

    def run(self) -> dict[str, Any]:
        manifest, params = self._manifest, self._params
        names = choose_namespaces(manifest.namespaces, manifest.namespace is None, params.namespace)
        key = f"restore/{self._context.run.run_id}/{manifest.backup_id}/{self._catalog.catalog_id}/" + "/".join(
            sorted(names.values())
        )
        for name in sorted(map(fold, names.values())):
            self._context.take_lease(self._lease(name))
        discard_dead_restores(self._context)
        plan = self._plan(names)
        if done := restored_before(self._context.connection, key):
            self._context.progress("an earlier attempt of this run has restored it")
            return self._finish(plan, names, done, [])
        target = self._target(names)
        self._context.progress(
            f"backup {manifest.backup_id} of {manifest}, {plan.file_count:,} file(s), goes to {self._catalog.name} as "
            f"{', '.join(names.values()) or 'nothing'}"
        )
        try:
            staged = self._stage(plan)
            done = self._publish(plan, target, staged, key)
        except LakeforkError:
            self._discard()
            raise
        return self._finish(plan, names, done, target.replaced_tables)

    def _lease(self, name: str) -> str:
        return f"restore/into/{self._catalog.catalog_id}/{name}"

    def _plan(self, names: dict[str, str]) -> RestorePlan:
        """Reads what the backup says of itself; each part must be what was written."""

        manifest, place = self._manifest, self._place
        place.require_marker(manifest)
        definitions = json.loads(place.read_part(manifest.definitions))
        place.read_part(manifest.documents)  # nobody needs it here, but the backup is to be whole
        tables = [one for one in manifest.tables if one.namespace in names]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            contents = list(pool.map(lambda one: place.read_part(one.batches) if one.batches else None, tables))
        files = {
            (table.namespace, table.name): _listed(content)
            for table, content in zip(tables, contents, strict=True)
            if content is not None
        }
        plan = plan_restore(definitions, names, files, {(one.namespace, one.name): one.digest for one in tables})
        self._require_same_digests(plan)
        self._require_present(plan)
        return plan

    def _require_same_digests(self, plan: RestorePlan) -> None:
        """Lists and definitions fit each other."""
        for table in plan.tables:
            contents = [(file.user_id or "", file.snapshot, file.digest, file.rows) for file in table.files]
            if digest_of_contents(table.kept, contents) != table.digest:
                raise DamagedBackupError(f"table {table.name} of backup {self._manifest.backup_id} is not what it was")

    def _require_present(self, plan: RestorePlan) -> None:
        listing = self._place.listing()
        wanted = [file for table in plan.tables for file in table.files if file.is_hot or not self._params.by_reference]
        missing = [
            file.digest
            for file in wanted
            if file.digest not in listing.files or listing.files[file.digest].size_bytes != file.size
        ]
        if missing:
            raise DamagedBackupError(
                f"{len(missing):,} file(s) of backup {self._manifest.backup_id} are missing or have another size "
                f"({names_of(missing)}): nothing was restored"
            )

    def _target(self, names: dict[str, str]) -> Target:
        connection, catalog_id = self._context.connection, self._catalog.catalog_id
        if self._params.by_reference and self._manifest.installation != installation_id(connection):
            raise InvalidInputError(
                f"backup {self._manifest.backup_id} was made by another installation: only files of this one can be "
                "shared, restore it without BY REFERENCE"
            )
        base = newest_snapshot(connection)
        existing = existing_namespaces(connection, catalog_id)
        replaced = require_free_names(names.values(), existing, replace=self._params.replace)
        return Target(self._catalog, names, replaced, tables_in(connection, catalog_id, replaced), base)

    def _stage(self, plan: RestorePlan) -> list[StagedFile]:
        context, data_path = self._context, self._catalog.data_path
        by_reference = self._params.by_reference
        staged = stage_plan(context, plan, self._catalog.catalog_id, data_path, by_reference=by_reference)
        tasks = fetch_tasks(staged)
        if tasks:
            self._claim_roots(plan.tables)
        source = Destination(self._place.path, self._place.storage)
        run_on_executors(
            context,
            tasks,
            lambda task: fetch_files(source, task),
            lambda task: task.size,
            in_megabytes("restored and checked"),
        )
        if tasks:
            make_durable(data_path)
        return staged

    def _claim_roots(self, tables: Sequence[TableToRestore]) -> None:
        connection, storage = self._context.connection, self._context.storage
        owner = RootOwner(installation_id(connection), self._catalog.catalog_id, 0)
        for table in tables:
            if table.files:
                root = f"{self._catalog.data_path}/{table.path}"
                claim_root(root, owner, storage, lambda root=root: known_files(connection, root))  # type: ignore[misc]

    def _publish(self, plan: RestorePlan, target: Target, staged: Sequence[StagedFile], key: str) -> Restored:
        for row in target.replaced_tables:
            plan.changes.end("ducklake_table", table_id=row["table_id"])
        for schema_id in target.replaced:
            plan.changes.end("ducklake_schema", schema_id=schema_id)
        publication = Publication(
            self._catalog.catalog_id, target.base_snapshot, plan.changes, plan.history, len(staged), plan.objects,
            plan.users, plan.locations, self._manifests(staged), key,
            f"backup {self._manifest.backup_id} of {self._manifest}",
        )  # fmt: skip
        self._context.check_leases()
        note_schema_files(self._context, self._catalog, list(target.names.values()))
        return self._context.commit_idempotently(lambda: self._commit(plan, target, publication))

    def _manifests(self, staged: Sequence[StagedFile]) -> list[dict[str, Any]]:
        """Directories in which files lie now."""
        found = {
            (one.table.ref, one.file.user_id or ""): one.full_path.rpartition("/")[0]
            for one in staged
            if one.full_path is not None
        }
        return [{"ref": ref, "user_id": user, "directory": directory} for (ref, user), directory in found.items()]

    def _commit(self, plan: RestorePlan, target: Target, publication: Publication) -> Restored:
        """Compared once more before anybody can see it: rows, definitions and options are those of the backup."""
        connection, run = self._context.connection, self._context.run
        leases = [self._lease(fold(name)) for name in target.names.values()]
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
                require_leases(connection, run.job_id, leases)
                lock_definitions(
                    connection, self._catalog.catalog_id, [row["table_id"] for row in target.replaced_tables]
                )
                connection.execute("SET LOCAL lock_timeout = 0")
                done = commit_restore(connection, run.job_id, run.run_id, publication)
                if not done.replayed:
                    self._require_equal(plan, done)
        except psycopg.errors.LockNotAvailable:
            raise ConflictError(
                f"a table to replace is being written to for more than {LOCK_SECONDS} seconds: try again"
            ) from None
        return done

    def _require_equal(self, plan: RestorePlan, done: Restored) -> None:
        catalog_id = self._catalog.catalog_id
        ids = {done.table_id(table.ref): table for table in plan.tables}
        found = restored_tables(self._context.connection, catalog_id, list(ids))
        contents = file_contents(self._context.connection, catalog_id, list(ids))
        for table_id, table in ids.items():
            if digest_of_contents(found[table_id], contents.get(table_id, [])) != table.digest:
                raise DamagedBackupError(
                    f"table {table.namespace}.{table.name} would not be what it was: nothing was restored"
                )

    def _discard(self) -> None:
        """As well as that is possible; otherwise the next restore does it."""
        try:
            discard_staged(self._context, self._context.run.job_id)
        except (LakeforkError, psycopg.Error) as error:
            self._context.progress(f"what was staged stays until the next restore: {error}")

    def _finish(
        self, plan: RestorePlan, names: dict[str, str], done: Restored, replaced: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        ids = [done.table_id(table.ref) for table in plan.tables]
        catalog = self._catalog
        note_clean(self._context.connection, [TableRef(catalog.catalog_id, table_id) for table_id in ids])
        write_manifests_of(self._context, catalog.catalog_id, ids)
        tables: dict[str, list[str]] = {name: [] for name in names.values()}
        for table in plan.tables:
            tables[table.namespace].append(table.name)
        for row in replaced:
            tables[new_name(names, row["namespace"])].append(row["table_name"])
        noted = note_schema_files(self._context, catalog, list(tables))
        write_schema_files(self._context, catalog, noted, tables)
        seconds = max(time.monotonic() - self._started, 0.001)
        rows = sum(file.rows for table in plan.tables for file in table.files)
        size = sum(file.size for table in plan.tables for file in table.files)
        self._context.progress(
            f"{', '.join(names.values())} of {catalog.name} is what backup {self._manifest.backup_id} holds: "
            f"{len(plan.tables):,} table(s), {rows:,} rows, snapshot {done.snapshot_id}"
        )
        return {
            "backup_id": self._manifest.backup_id, "namespace": ", ".join(names.values()), "tables": len(plan.tables),
            "rows_out": rows, "files": plan.file_count, "bytes": size,
            "files_written": 0 if self._params.by_reference else plan.file_count,
            "bytes_per_second": round(size / seconds), "snapshot_id": done.snapshot_id,
        }  # fmt: skip


def new_name(names: Mapping[str, str], replaced: str) -> str:
    """How a namespace is written that another one replaces: names differ in their case at most."""
    return next(name for name in names.values() if fold(name) == fold(replaced))


def _listed(content: bytes) -> list[ListedFile]:
    columns = parse_list(content).to_pydict()
    names = (
        "digest", "file_size_bytes", "record_count", "footer_size", "user_id", "snapshot", "data_file_id",
        "statistics",
    )  # fmt: skip
    return [ListedFile(*row) for row in zip(*(columns[name] for name in names), strict=True)]
