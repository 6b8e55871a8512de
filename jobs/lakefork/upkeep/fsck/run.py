"""Runs catalog_fsck: invariants in SQL, files on Spark."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection
from lakefork.cold.batch import read_facts
from lakefork.errors import JobFailedError
from lakefork.model.params import CatalogFsckParams
from lakefork.queries import load
from lakefork.spark.job import JobContext
from lakefork.storage import StorageOptions, open_path
from lakefork.storage.installation import Installation
from lakefork.upkeep.fsck.plan import Finding, RecordedFile, by_catalog, check_facts, check_size, plan_ranges

BATCH = 1000
SHOWN_FINDINGS = 1000


@dataclass(frozen=True)
class FileRange:
    """One Spark task: the files with ids in this range."""

    first_id: int
    last_id: int
    files: int


@dataclass(frozen=True)
class RangeReport:
    files: int
    findings: list[Finding]
    more_findings: int


def run_fsck(context: JobContext, params: CatalogFsckParams) -> dict[str, Any]:
    """Checks the catalog and its files; changes nothing, and fails if anything is damaged."""
    sql = load(__package__)
    catalog_id = find_catalog(context.connection, params.catalog).catalog_id if params.catalog else None
    findings = _check_catalog(context.connection, catalog_id)
    context.progress(f"catalog checked: {len(findings)} finding(s)")
    counted = context.connection.execute(sql["count_files"], {"catalog_id": catalog_id}).fetchone() or {}
    more = 0
    for report in _check_files(context, catalog_id, params.deep, counted["files"]):
        findings += report.findings
        more += report.more_findings
    result = {
        "catalogs": _count_catalogs(context.connection, catalog_id),
        "files": counted["files"],
        "bytes": int(counted["bytes"]),
        "findings": len(findings) + more,
    }
    for finding in findings:
        context.progress(str(finding))
    if findings:
        where = ", ".join(f"{name} ({count})" for name, count in sorted(by_catalog(findings).items())[:10])
        kinds = Counter(finding.check for finding in findings)
        raise JobFailedError(
            f"{len(findings) + more} finding(s) in {where}: {', '.join(f'{n}× {kind}' for kind, n in kinds.items())}; "
            "each is listed above",
            {**result, "first_findings": [str(finding) for finding in findings[:20]]},
        )
    return result


def _check_catalog(connection: Connection, catalog_id: int | None) -> list[Finding]:
    rows = connection.execute(load(__package__)["fsck"], {"catalog_id": catalog_id})
    return [
        Finding(row["check_name"], row["catalog_name"] or _number(row["catalog_id"]), row["object"], row["problem"])
        for row in rows
    ]


def _number(catalog_id: int | None) -> str | None:
    return None if catalog_id is None else f"id {catalog_id}"


def _count_catalogs(connection: Connection, catalog_id: int | None) -> int:
    if catalog_id is not None:
        return 1
    row = connection.execute("SELECT count(*) AS catalogs FROM lakefork.visible_catalog()").fetchone()
    return int(row["catalogs"]) if row else 0


def _check_files(context: JobContext, catalog_id: int | None, deep: bool, files: int) -> Iterator[RangeReport]:
    """Distributes the files over Spark, a range of ids per task; without files Spark is not started."""
    if files == 0:
        return
    from pyspark import SparkContext

    spark = SparkContext.getOrCreate()
    ranges = [
        FileRange(**row)
        for row in context.connection.execute(
            load(__package__)["file_ranges"],
            {"catalog_id": catalog_id, "ranges": plan_ranges(files, spark.defaultParallelism)},
        )
    ]
    context.progress(f"{files} file(s) to check in {len(ranges)} task(s) on {spark.master}")
    installation = context.installation
    done = 0
    bar = context.bar(files)
    for report in (
        spark.parallelize(ranges, len(ranges))
        .map(lambda file_range: _check_range(installation, catalog_id, deep, file_range))
        .toLocalIterator(prefetchPartitions=True)
    ):
        done += report.files
        bar.reach(done, f"{done} of {files} file(s) checked")
        yield report


def _check_range(installation: Installation, catalog_id: int | None, deep: bool, file_range: FileRange) -> RangeReport:
    """Checks a range in a Spark task, with its own connection; streams, so that memory stays bounded."""
    findings: list[Finding] = []
    more = files = 0
    with psycopg.connect(installation.dsn, row_factory=dict_row) as connection, connection.cursor("files") as cursor:
        cursor.execute(
            load(__package__)["referenced_files"],
            {"first_id": file_range.first_id, "last_id": file_range.last_id, "catalog_id": catalog_id, "deep": deep},
        )
        while rows := cursor.fetchmany(BATCH):
            files += len({row["file_id"] for row in rows})
            for finding in _check_batch([_recorded(row) for row in rows], installation.storage, deep):
                if len(findings) < SHOWN_FINDINGS:
                    findings.append(finding)
                else:
                    more += 1
    return RangeReport(files, findings, more)


def _recorded(row: dict[str, Any]) -> RecordedFile:
    return RecordedFile(
        row["file_id"], row["kind"], row["path"], row["file_size_bytes"], row["footer_size"], row["record_count"],
        row["catalog_name"] or f"id {row['catalog_id']}", row["catalogs"], row["statistics"],
    )  # fmt: skip


def _check_batch(recorded: list[RecordedFile], storage: StorageOptions, deep: bool) -> Iterator[Finding]:
    located = [(file, *open_path(file.path, storage)) for file in recorded if file.path is not None]
    for filesystem in {id(found[1]): found[1] for found in located}.values():
        here = [(file, path) for file, owner, path in located if owner is filesystem]
        for (file, path), info in zip(here, filesystem.get_file_info([path for _, path in here]), strict=True):
            seen_size = info.size if info.is_file else None
            problems = list(check_size(file, seen_size))
            yield from problems
            if deep and not problems and file.kind == "data":
                yield from _check_footer(file, filesystem, path)


def _check_footer(file: RecordedFile, filesystem: Any, path: str) -> Iterator[Finding]:
    try:
        facts = read_facts(filesystem, path)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        yield file.finding(f"it is not readable Parquet: {str(error).splitlines()[0]}")
    else:
        yield from check_facts(file, facts)
