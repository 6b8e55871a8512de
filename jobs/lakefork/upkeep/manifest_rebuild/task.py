"""The Spark task of manifest_rebuild: lists directories, reads footers, compares with the catalog."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from lakefork.cold.batch import read_facts
from lakefork.cold.statistics import BatchFacts
from lakefork.errors import LakeforkError
from lakefork.manifests.format import (
    FILE_NAME,
    BrokenManifest,
    Difference,
    RecordedDirectory,
    check_manifest,
    etag_of,
    read_manifest,
)
from lakefork.queries import load
from lakefork.spark.tasks import attempt
from lakefork.storage import StorageOptions, list_files, open_path, read_file
from lakefork.storage.installation import Installation
from lakefork.upkeep.manifest_rebuild.plan import CheckTask, ManifestFinding, Owner, check_files, unknown_files

AT_ONCE = 16  # concurrent requests to S3; local files are read one after the other
SHOWN_FINDINGS = 1_000

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass
class CheckReport:
    """The findings of a task; to_heal: manifests to rewrite, by user and directory."""

    task: CheckTask
    directories: int = 0
    files: int = 0
    findings: list[ManifestFinding] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    to_heal: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def add(self, finding: ManifestFinding) -> None:
        self.kinds[finding.kind] += 1
        if len(self.findings) < SHOWN_FINDINGS:
            self.findings.append(finding)


@dataclass(frozen=True)
class Content:
    """The content of a directory: names with sizes, and the manifest; or the error of reading it."""

    sizes: Mapping[str, int]
    manifest: bytes | None
    problem: str | None = None


def check_directories(installation: Installation, task: CheckTask) -> CheckReport | LakeforkError:
    return attempt(lambda: _check(task, *_recorded(installation.dsn, task), installation.storage))


def _recorded(dsn: str, task: CheckTask) -> tuple[list[RecordedDirectory], dict[str, dict[str, Any]]]:
    """Returns what the catalog and the cache know of the task's directories."""
    table = task.table
    wanted = {
        "catalog_id": table.catalog_id, "table_id": table.table_id, "per_user": table.per_user,
        "users": [owner.user_id for owner in table.owners], "part": task.part, "parts": task.parts,
    }  # fmt: skip
    sql = load(__package__)
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        rows = {row["user_id"]: row for row in connection.execute(sql["part_of_batches"], wanted)}
        cached = {row["user_id"]: row for row in connection.execute(sql["cached_manifests"], wanted)}
    nothing = {"snapshot_id": 0, "batches": []}
    directories = []
    for owner in table.owners:
        row = rows.get(owner.user_id, nothing)
        user = owner.user_id if table.per_user else None
        directories.append(RecordedDirectory(owner.directory, table.table_id, user, row["snapshot_id"], row["batches"]))
    return directories, cached


def _check(
    task: CheckTask,
    directories: Sequence[RecordedDirectory],
    cached: Mapping[str, Mapping[str, Any]],
    storage: StorageOptions,
) -> CheckReport:
    report = CheckReport(task)
    seen = each([one.path for one in directories], lambda path: _list_directory(path, storage), directories[0].path)
    footers = _read_footers(task, directories, seen, storage)
    for owner, recorded, found in zip(task.table.owners, directories, seen, strict=True):
        if found.problem and task.manifests:
            report.add(ManifestFinding("unreadable file", task.table.name, recorded.path, found.problem))
        elif not found.problem:
            _check_one(report, owner, recorded, found, footers.get(recorded.path, {}), cached.get(owner.user_id))
    return report


def _check_one(
    report: CheckReport,
    owner: Owner,
    recorded: RecordedDirectory,
    seen: Content,
    footers: Mapping[str, BatchFacts | str],
    cached: Mapping[str, Any] | None,
) -> None:
    if report.task.footers:
        report.files += len(recorded.own)
        for finding in check_files(report.task.table.name, recorded.own, seen.sizes, footers):
            report.add(finding)
    if report.task.manifests:
        report.directories += 1
        _check_manifest(report, owner, recorded, seen, cached)


def _list_directory(directory: str, storage: StorageOptions) -> Content:
    try:
        sizes = list_files(directory, storage)
        manifest = read_file(f"{directory}/{FILE_NAME}", storage) if FILE_NAME in sizes else None
    except OSError as error:
        return Content({}, None, f"it cannot be read: {str(error).splitlines()[0]}")
    return Content(sizes, manifest)


def _read_footers(
    task: CheckTask, directories: Sequence[RecordedDirectory], seen: Sequence[Content], storage: StorageOptions
) -> dict[str, dict[str, BatchFacts | str]]:
    """Reads footers of files with the right size, by directory and name."""
    if not task.footers:
        return {}
    positions = [
        (recorded.path, name)
        for recorded, found in zip(directories, seen, strict=True)
        for batch in recorded.own
        if found.sizes.get(name := batch["path"].rpartition("/")[2]) == batch["size_bytes"]
    ]
    facts = each(positions, lambda position: _footer(f"{position[0]}/{position[1]}", storage), directories[0].path)
    footers: dict[str, dict[str, BatchFacts | str]] = {}
    for (directory, name), one in zip(positions, facts, strict=True):
        footers.setdefault(directory, {})[name] = one
    return footers


def _footer(path: str, storage: StorageOptions) -> BatchFacts | str:
    filesystem, inner = open_path(path, storage)
    try:
        return read_facts(filesystem, inner)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        return f"it is not readable Parquet: {str(error).splitlines()[0]}"


def _check_manifest(
    report: CheckReport,
    owner: Owner,
    recorded: RecordedDirectory,
    seen: Content,
    cached: Mapping[str, Any] | None,
) -> None:
    report.unknown += [f"{recorded.path}/{name}" for name in unknown_files(recorded.own, seen.sizes)]
    path = f"{recorded.path}/{FILE_NAME}"
    differences = list(_differences(recorded, seen.manifest, cached))
    for one in differences:
        report.add(ManifestFinding(one.kind, report.task.table.name, path, one.problem))
    if differences:
        report.to_heal.append((owner.user_id, recorded.path))


def _differences(
    recorded: RecordedDirectory, content: bytes | None, cached: Mapping[str, Any] | None
) -> Iterator[Difference]:
    if content is None:
        # A directory without batches of its own, as in a new fork, needs no manifest.
        if recorded.own or cached:
            yield Difference("missing manifest", f"it does not exist; the catalog has {len(recorded.own)} batch(es)")
        return
    found = read_manifest(content)
    yield from check_manifest(found, recorded)
    if isinstance(found, BrokenManifest) or cached is None:
        return
    if cached["sync_state"] != "in_sync":
        yield Difference("stale cache", f"the cache has it as {cached['sync_state']}")
    elif cached["etag"] != etag_of(content):
        yield Difference("stale cache", "the cache has a different one")


def each(items: Sequence[Item], work: Callable[[Item], Found], where: str) -> list[Found]:
    """Calls a function for each item, concurrently on S3."""
    if not where.startswith("s3://"):
        return [work(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))
