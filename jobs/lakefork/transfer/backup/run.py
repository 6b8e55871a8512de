"""namespace_backup: keeps a namespace, or a whole catalog, as it is at one moment, while everybody goes on working."""

import datetime
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefork import __version__
from lakefork.backups.access import open_place
from lakefork.backups.format import (
    BackedUpTable,
    BackupManifest,
    Stored,
    json_bytes,
    list_bytes,
)
from lakefork.backups.place import Place, names_of
from lakefork.catalog.backups import (
    Begun,
    begin_backup,
    end_dead_backups,
    finish_backup,
    note_verified,
    remember_digests,
)
from lakefork.catalog.catalogs import Catalog, find_catalog
from lakefork.catalog.jobs import take_request
from lakefork.catalog.roots import installation_id
from lakefork.errors import JobFailedError, LakeforkError, NotFoundError, StorageError, os_reason
from lakefork.model.params import NamespaceBackupParams
from lakefork.spark.job import JobContext
from lakefork.storage.paths import place as place_of
from lakefork.transfer.backup.base import Before, Wanted, look_at_place
from lakefork.transfer.backup.documents import documents_of
from lakefork.transfer.backup.executors import in_megabytes, run_on_executors
from lakefork.transfer.backup.keep import finish_removals, remove_unneeded
from lakefork.transfer.backup.plan import CopyPlan, FileToKeep, backups_to_remove, plan_copies, plan_hot_slices
from lakefork.transfer.backup.subject import (
    Subject,
    definitions_of,
    digest_of,
    list_of,
    read_subject,
    require_namespace,
)
from lakefork.transfer.backup.task import Destination, HotReading, KeptRows, copy_files, keep_hot_rows
from lakefork.transfer.backup.verify import verify_backup

MB = 1 << 20
TRIES = 3  # at a snapshot that is given up in the same moment
LEFT = "the backups that are at {place} are whole; what this one copied goes with the next one there: run it again"


def run_namespace_backup(context: JobContext, params: NamespaceBackupParams) -> dict[str, Any]:
    take_request(context.connection, params.request)
    catalog = find_catalog(context.connection, params.catalog)
    place, backup_id = open_place(context.connection, catalog, params.to, str(context.settings.home), context.storage)
    if backup_id is not None:
        raise NotFoundError(f"{params.to!r} is a backup: give the place that holds it, {place.path}")
    require_namespace(context.connection, catalog, params.namespace)
    context.take_lease(f"backup/{place_of(place.path)}")
    backup = _Backup(context, params, catalog, place)
    return backup.plan() if params.dry_run else backup.make()


class _Backup:
    def __init__(self, context: JobContext, params: NamespaceBackupParams, catalog: Catalog, place: Place) -> None:
        self._context = context
        self._params = params
        self._catalog = catalog
        self._place = place
        self._name = place_of(place.path)
        self._installation = installation_id(context.connection)
        self._started = time.monotonic()

    def plan(self) -> dict[str, Any]:
        """Nothing is written anywhere."""
        with read_subject(self._context.dsn, self._catalog, self._params.namespace) as subject:
            before = self._look(subject)
            copies = plan_copies(_files_of(subject), before.reliable)
            mine = [one.backup_id for one in before.manifests if one.subject == self._subject(subject)]
        going = backups_to_remove([*mine, "this one"], self._params.keep)
        versions = sum(waiting for _, _, waiting in subject.waiting)
        self._context.progress(
            f"to copy: {copies.files:,} file(s), {copies.bytes:,} bytes, and {versions:,} version(s) of hot rows; "
            f"{len(copies.relied_on):,} file(s) are already at {self._name}; "
            f"to remove: {', '.join(going) or 'no backup'}"
        )
        return {
            "tables": len(subject.tables), "files_to_copy": copies.files, "bytes_to_copy": copies.bytes,
            "hot_versions": versions, "files_relied_on": len(copies.relied_on), "backups_to_remove": len(going),
        }  # fmt: skip

    def make(self) -> dict[str, Any]:
        marker = self._claim()
        self._settle_dead_runs()
        finish_removals(self._context, self._place)
        with self._moment() as (subject, begun):
            try:
                before = self._look(subject)
                manifest = self._copy(subject, begun, before, marker)
                self._publish(begun, manifest)
            except BaseException as error:
                self._report_failure(begun, error)
                raise
        result = self._result(manifest)
        if self._params.verify:
            self._verify(manifest, result)
        try:
            result |= self._remove_old(before, manifest)
        except LakeforkError as error:
            raise JobFailedError(
                f"backup {manifest.backup_id} is complete, but old ones could not be removed: {error}", result
            ) from error
        return result

    def _verify(self, manifest: BackupManifest, result: dict[str, Any]) -> None:
        found = verify_backup(self._place, manifest.backup_id)
        note_verified(self._context.connection, manifest.backup_id, found.percent, len(found.problems))
        if found.problems:
            raise JobFailedError(
                f"backup {manifest.backup_id} is damaged: {len(found.problems):,} problem(s), the first: "
                f"{found.problems[0]}",
                result,
            )
        self._context.progress(f"it is whole: {found.files:,} file(s), {found.bytes_read:,} bytes were read back")

    def _claim(self) -> Stored:
        try:
            marker = self._place.claim(self._installation)
            self._place.make_directories()
        except OSError as error:
            raise StorageError(f"{self._name} cannot be written to: {os_reason(error)}") from error
        return marker

    def _settle_dead_runs(self) -> None:
        """One whose manifest is there had come to its end."""
        connection = self._context.connection
        for backup_id in end_dead_backups(connection, self._name, self._context.run.job_id):
            try:
                manifest = self._place.read_manifest(backup_id)
            except LakeforkError:
                self._context.progress(f"backup {backup_id} was cut off; what it left at {self._name} is removed")
            else:
                finish_backup(connection, self._begun(backup_id, manifest.taken_at, 0), **_record(manifest))

    @contextmanager
    def _moment(self) -> Iterator[tuple[Subject, Begun]]:
        """All tables as they are at one moment: a tag keeps their files, an open transaction their hot rows."""
        context = self._context
        for attempt in range(TRIES):
            with read_subject(context.dsn, self._catalog, self._params.namespace) as subject:
                backup_id = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
                begun = self._begun(backup_id, subject.read.read_at, subject.snapshot_id)
                try:
                    begin_backup(context.connection, begun)
                except NotFoundError:
                    if attempt + 1 == TRIES:
                        raise
                    continue
                yield subject, begun
                return

    def _begun(self, backup_id: str, taken_at: datetime.datetime, snapshot_id: int) -> Begun:
        run = self._context.run
        return Begun(
            backup_id, self._catalog.catalog_id, self._catalog.name, self._params.namespace, self._name, run.job_id,
            run.run_id, taken_at, snapshot_id,
        )  # fmt: skip

    def _subject(self, subject: Subject) -> tuple[str, str, str | None]:
        return self._installation, self._catalog.name, subject.namespace

    def _look(self, subject: Subject) -> Before:
        wanted = Wanted(self._subject(subject), self._params.incremental, _named(subject))
        return look_at_place(self._context, self._place, self._name, wanted)

    def _copy(self, subject: Subject, begun: Begun, before: Before, marker: Stored) -> BackupManifest:
        hot = self._keep_hot_rows(subject)
        copies = plan_copies(_files_of(subject), before.reliable)
        self._context.progress(
            f"{_named(subject)} as of {begun.taken_at:%Y-%m-%d %H:%M:%S} UTC: {copies.files:,} file(s) with "
            f"{copies.bytes:,} bytes to copy, {len(copies.relied_on):,} are already at {self._name}"
        )
        digests = self._copy_files(copies, subject.files.num_rows)
        self._context.check_leases()
        return self._describe(subject, begun, before, marker, copies, digests, hot)

    def _keep_hot_rows(self, subject: Subject) -> list[KeptRows]:
        settings, context = self._context.settings.flush, self._context
        slices = plan_hot_slices(subject.waiting, settings.slice_rows, 2 * (os.cpu_count() or 1))
        reading = HotReading(
            context.dsn, subject.read.name, settings.slice_mb * MB, settings.file_mb * MB, settings.bloom_filter_fpp
        )
        destination, tables = Destination(self._place.path, self._place.storage), subject.hot
        found = run_on_executors(
            context,
            slices,
            lambda one: keep_hot_rows(destination, reading, tables, [one]),
            lambda _: 1,
            lambda done, total, _: f"{done:,} of {total:,} part(s) of the hot rows kept",
        )
        return [kept for of_slice in found for kept in of_slice]

    def _copy_files(self, copies: CopyPlan, files: int) -> list[str]:
        """The digest of each file, by its number."""
        destination = Destination(self._place.path, self._place.storage)
        digests = [""] * files
        for file in copies.relied_on:
            digests[file.number] = file.digest or ""
        found = run_on_executors(
            self._context,
            copies.tasks,
            lambda task: copy_files(destination, task),
            lambda task: task.size,
            in_megabytes("copied"),
        )
        for number, digest in (one for of_task in found for one in of_task):
            digests[number] = digest
        return digests

    def _describe(
        self,
        subject: Subject,
        begun: Begun,
        before: Before,
        marker: Stored,
        copies: CopyPlan,
        digests: Sequence[str],
        hot: Sequence[KeptRows],
    ) -> BackupManifest:
        writer = _PartWriter(self._place, before.reliable)
        tables = list(_tables_of(subject, digests, hot, writer))
        definitions = writer.put(json_bytes(definitions_of(subject)))
        documents = writer.put(documents_of(self._context.connection, subject, self._context.storage))
        files = subject.files
        ids, sizes = files["data_file_id"].to_pylist(), files["file_size_bytes"].to_pylist()
        known = set(files["digest"].to_pylist())
        new = [one for one in zip(ids, digests, sizes, strict=True) if one[1] not in known]
        if new:
            remember_digests(self._context.connection, new)
        written = [one for one in hot if one.digest not in before.reliable]
        return BackupManifest(
            lakefork=__version__, backup_id=begun.backup_id, installation=self._installation,
            catalog=self._catalog.name, namespace=subject.namespace,
            namespaces=tuple(one.name for one in subject.namespaces), taken_at=begun.taken_at,
            snapshot_id=begun.snapshot_id, base=before.base.backup_id if before.base else None, tables=tuple(tables),
            definitions=definitions,
            documents=documents, marker=marker, rows=sum(one.rows for one in tables),
            files=sum(one.files for one in tables), bytes=sum(one.bytes for one in tables),
            copied_files=copies.files + len(written),
            copied_bytes=copies.bytes + sum(one.size for one in written) + writer.written,
        )  # fmt: skip

    def _publish(self, begun: Begun, manifest: BackupManifest) -> None:
        """All that it needs is there once more, then the manifest."""
        listing = self._place.listing()
        missing = [digest for digest, one in self._place.files_of(manifest).items() if not listing.has(one)]
        if missing:
            raise StorageError(
                f"{len(missing):,} file(s) disappeared from {self._name} in the meantime: {names_of(missing)}"
            )
        self._context.check_leases()
        self._place.publish(manifest)
        self._context.with_reconnect(
            "recording the backup", lambda: finish_backup(self._context.connection, begun, **_record(manifest))
        )
        seconds = max(time.monotonic() - self._started, 0.001)
        self._context.progress(
            f"backup {manifest.backup_id} of {manifest} is complete: {manifest.files:,} file(s), {manifest.rows:,} "
            f"rows; {manifest.copied_bytes:,} bytes were copied, {manifest.copied_bytes / seconds / 1e6:,.1f} MB/s"
        )

    def _report_failure(self, begun: Begun, error: BaseException) -> None:
        if not isinstance(error, Exception):
            return  # nobody is left who could; the next run settles it
        self._context.progress(LEFT.format(place=self._name))
        self._context.with_reconnect(
            "recording the failure",
            lambda: finish_backup(self._context.connection, begun, status="failed", error=str(error)),
        )

    def _remove_old(self, before: Before, manifest: BackupManifest) -> dict[str, Any]:
        mine = [one.backup_id for one in before.manifests if one.subject == manifest.subject]
        going = backups_to_remove([*mine, manifest.backup_id], self._params.keep)
        return remove_unneeded(self._context, self._place, manifest, going)

    def _result(self, manifest: BackupManifest) -> dict[str, Any]:
        seconds = max(time.monotonic() - self._started, 0.001)
        return {
            "backup_id": manifest.backup_id, "place": self._name, "base": manifest.base,
            "tables": len(manifest.tables), "rows_out": manifest.rows, "files": manifest.files,
            "bytes": manifest.bytes, "files_written": manifest.copied_files, "bytes_written": manifest.copied_bytes,
            "bytes_per_second": round(manifest.copied_bytes / seconds), "snapshot_id": manifest.snapshot_id,
        }  # fmt: skip


@dataclass
class _PartWriter:
    """Files of the backup itself; those that are there already are not written again."""

    place: Place
    reliable: dict[str, int]
    written: int = 0

    def put(self, content: bytes) -> Stored:
        stored = self.place.put(content, self.reliable)
        self.written += 0 if stored.digest in self.reliable else stored.size
        return stored


def _tables_of(
    subject: Subject, digests: Sequence[str], hot: Sequence[KeptRows], writer: _PartWriter
) -> Iterator[BackedUpTable]:
    contents = pa.array(digests, pa.string())
    places = _places_of(subject.files["table_id"].to_pylist())
    of_hot: dict[int, list[KeptRows]] = {}
    for kept in hot:
        of_hot.setdefault(subject.hot[kept.table].definition.table_id, []).append(kept)
    namespaces = {one.schema_id: one.name for one in subject.namespaces}
    for table in subject.tables:
        start, count = places.get(table.table_id, (0, 0))
        mine = subject.files.slice(start, count), contents.slice(start, count)
        batches = list_of(*mine, of_hot.get(table.table_id, []))
        yield BackedUpTable(
            namespace=namespaces[table.schema_id], name=table.name, kind=table.kind,
            rows=pc.sum(batches["record_count"]).as_py() or 0, files=batches.num_rows,
            bytes=pc.sum(batches["file_size_bytes"]).as_py() or 0, digest=digest_of(table, batches),
            batches=writer.put(list_bytes(batches)) if batches.num_rows else None,
        )  # fmt: skip


def _places_of(tables: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Where the files of each table begin, and how many there are; they come table by table."""
    found: dict[int, tuple[int, int]] = {}
    for place, table in enumerate(tables):
        start, count = found.get(table, (place, 0))
        found[table] = start, count + 1
    return found


def _files_of(subject: Subject) -> Iterable[FileToKeep]:
    columns = (subject.files[name].to_pylist() for name in ("path", "file_size_bytes", "digest"))
    return (FileToKeep(number, *row) for number, row in enumerate(zip(*columns, strict=True)))


def _record(manifest: BackupManifest) -> dict[str, Any]:
    return {
        "status": "complete", "base_id": manifest.base, "table_count": len(manifest.tables),
        "file_count": manifest.files, "row_count": manifest.rows, "size_bytes": manifest.bytes,
        "copied_files": manifest.copied_files, "copied_bytes": manifest.copied_bytes,
    }  # fmt: skip


def _named(subject: Subject) -> str:
    name = subject.catalog.name
    return f"catalog {name}" if subject.namespace is None else f"namespace {subject.namespace} of catalog {name}"
