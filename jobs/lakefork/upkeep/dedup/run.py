"""Runs snapshot_dedup: merges the batches of each owner into a few sorted ones, one commit per group."""

import datetime
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import duckdb
from psycopg.types.json import Jsonb

from lakefork.catalog.catalogs import newest_snapshot
from lakefork.catalog.commits import Changes
from lakefork.catalog.definitions import find_definitions
from lakefork.catalog.leases import table_lease, work_lease
from lakefork.catalog.roots import installation_id
from lakefork.catalog.staging import tables_with_leftovers
from lakefork.cold.batch_files import Destination, WrittenFile
from lakefork.cold.layout import batch_directory, below_table
from lakefork.cold.statistics import parse_bound
from lakefork.database_errors import domain_errors
from lakefork.errors import ConflictError, LakeforkError, NotFoundError, StorageError
from lakefork.model.batches import BatchContent, Candidate
from lakefork.model.key_ranges import KeyRange
from lakefork.model.params import SnapshotDedupParams
from lakefork.model.seqid import MILLISECOND, SeqId
from lakefork.model.tables import TableDefinition, TableRef
from lakefork.queries import load
from lakefork.read.reader import open_reader
from lakefork.spark.job import JobContext
from lakefork.spark.tasks import attempt, unwrap
from lakefork.storage import StorageOptions
from lakefork.upkeep.dedup.plan import Group, Limits, plan_groups
from lakefork.upkeep.dedup.task import READER_MB, Merge, Merged, MergeEnvironment, Part, run_parts, scan_of
from lakefork.upkeep.manifests import write_pending
from lakefork.upkeep.staging import discard_leftovers, remove_unpublished

MB = 1 << 20
EXPANSION = 4  # assumed ratio of memory to disk size; parts that need more are halved
SAMPLED_KEYS = 1_000  # per part


@dataclass
class Plan:
    base: int
    merges: list[Merge] = field(default_factory=list)

    @property
    def tables(self) -> list[TableRef]:
        return sorted({merge.definition.ref for merge in self.merges})

    def only(self, tables: Collection[TableRef]) -> "Plan":
        return Plan(self.base, [merge for merge in self.merges if merge.definition.ref in tables])

    def __str__(self) -> str:
        batches = sum(len(merge.group.batches) for merge in self.merges)
        size = sum(merge.group.size_bytes for merge in self.merges)
        return (
            f"{batches:,} batches in {len(self.merges):,} group(s) of {len(self.tables):,} table(s), "
            f"{size / MB:,.1f} MB"
        )


@dataclass
class DedupTotals:
    """Published results; unwritten: groups that failed, with the reason."""

    tables: dict[TableRef, int] = field(default_factory=dict)  # with the last snapshot of each
    users: set[tuple[TableRef, str]] = field(default_factory=set)
    rows_in: int = 0
    rows_out: int = 0
    files_written: int = 0
    bytes_written: int = 0
    files_replaced: int = 0
    bytes_replaced: int = 0
    snapshot_id: int | None = None
    unwritten: list[str] = field(default_factory=list)

    def add(self, merge: Merge, read: int, files: Sequence[WrittenFile], snapshot_id: int) -> None:
        table = merge.definition.ref
        self.tables[table] = snapshot_id
        self.users |= {(table, merge.user_id)} if merge.user_id is not None else set()
        for name, count in self.counts(merge, read, files).items():
            setattr(self, name, getattr(self, name) + count)
        self.snapshot_id = max(self.snapshot_id or 0, snapshot_id)

    @staticmethod
    def counts(merge: Merge, read: int, files: Sequence[WrittenFile]) -> dict[str, int]:
        return {
            "rows_in": read,
            "rows_out": sum(file.facts.record_count for file in files),
            "files_written": len(files),
            "bytes_written": sum(file.facts.size_bytes for file in files),
            "files_replaced": len(merge.group.batches),
            "bytes_replaced": merge.group.size_bytes,
        }

    def as_result(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name != "unwritten"}
        return {**counts, "tables": len(self.tables), "users": len(self.users)}


def run_dedup(context: JobContext, params: SnapshotDedupParams) -> dict[str, Any]:
    done = DedupTotals()
    _discard_leftovers(context)
    plan, held = _lease(context, _plan(context, params))
    if plan.merges:
        _merge_all(context, plan, done)
    while held and params.is_targeted:
        waited_for = set(held)
        context.wait_for_leases({work_lease(context.run.job, table): name for table, name in held.items()})
        plan, held = _lease(context, _plan(context, params).only(waited_for))
        if plan.merges:
            _merge_all(context, plan, done)
    for name in sorted(held.values()):
        context.progress(f"{name} is being deduplicated by another run: skipped")
    if not done.tables:
        context.progress("nothing to merge")
    if done.unwritten:
        raise StorageError("; ".join(done.unwritten))
    return done.as_result()


def _plan(context: JobContext, params: SnapshotDedupParams) -> Plan:
    """Plans the merges from one transaction of the catalog."""
    settings = context.settings.dedup
    limits = Limits(
        params.min_batches or settings.min_batches, settings.superseded_share, settings.file_mb * MB,
        settings.group_mb * MB,
    )  # fmt: skip
    wanted = {"catalog": params.catalog, "namespace": params.namespace, "table": params.table}
    with context.connection.transaction():
        context.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        plan = Plan(newest_snapshot(context.connection))
        rows = context.connection.execute(load(__package__)["dedup_candidates"], wanted).fetchall()
        tables = list(dict.fromkeys(map(TableRef.of, rows)))
        defined = find_definitions(context.connection, tables)
        oldest = _oldest_transaction(context)
    for (table, user_id, only_inherited), group in groupby(
        rows, lambda row: (TableRef.of(row), row["user_id"], row["only_inherited"])
    ):
        if table in defined:
            definition = defined[table].definition
            candidates = [_candidate(definition, row) for row in group]
            forget = forget_before(definition.deleted_retention, oldest)
            only_expired = only_inherited and params.catalog is None
            for found in plan_groups(candidates, limits, forget, only_expired=only_expired):
                plan.merges.append(_merge(definition, user_id, found, limits, forget))
    return plan


def _candidate(definition: TableDefinition, row: dict[str, Any]) -> Candidate:
    kind = definition.key[0].type
    return Candidate(
        row["data_file_id"], row["file_order"], row["path"], row["record_count"], row["file_size_bytes"],
        int(row["min_seq"] or 0),
        KeyRange(parse_bound(row["key_low"], kind), parse_bound(row["key_high"], kind)),
        _CONTENTS.get((row["min_deleted"], row["max_deleted"]), BatchContent.BOTH),
    )  # fmt: skip


_CONTENTS = {("0", "0"): BatchContent.LIVE, ("1", "1"): BatchContent.TOMBSTONES}


def _merge(definition: TableDefinition, user_id: str, group: Group, limits: Limits, forget: int | None) -> Merge:
    bytes_per_row = group.size_bytes / max(group.rows, 1)
    rows_per_file = max(1, int(limits.target_bytes / max(bytes_per_row, 0.01)))
    owner = user_id if definition.per_user else None
    return Merge(definition, owner, group, forget if group.alone else None, rows_per_file)


def forget_before(retention_seconds: int | None, oldest_transaction: datetime.datetime) -> int | None:
    """Returns the _seq below which tombstones have expired; None: they are kept for ever."""
    if retention_seconds is None:
        return None
    now = datetime.datetime.now(datetime.UTC)
    moment = min(now - datetime.timedelta(seconds=retention_seconds), oldest_transaction)
    return SeqId.first_at(moment - MILLISECOND)  # ids do not tell when in a millisecond


def _oldest_transaction(context: JobContext) -> datetime.datetime:
    """Returns the start of the oldest open transaction, which may still depend on rows deleted since.

    Hidden transactions (role pg_read_all_stats shows them) count as infinitely old.
    """
    row = context.connection.execute(
        "SELECT CASE WHEN bool_or(query = '<insufficient privilege>') THEN to_timestamp(0) "
        "ELSE coalesce(min(xact_start), now()) END AS oldest FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchone()
    assert row is not None  # noqa: S101 - an aggregate
    oldest: datetime.datetime = row["oldest"]
    return oldest


def _discard_leftovers(context: JobContext) -> None:
    """Discards staged files of dead runs, also of tables that were dropped or have nothing to merge."""
    job = context.run.job
    names = {work_lease(job, table): table for table in tables_with_leftovers(context.connection, job)}
    leased = context.leases.acquire_available(context.connection, names)
    discard_leftovers(context, sorted(names[name] for name in leased))


def _lease(context: JobContext, plan: Plan) -> tuple[Plan, dict[TableRef, str]]:
    """Leases the tables to merge; returns the plan for them, and the names of tables that another dedup works on."""
    names = {work_lease(context.run.job, table): table for table in plan.tables}
    leased = {names[name] for name in context.leases.acquire_available(context.connection, names)}
    held = {merge.definition.ref: _name(merge.definition) for merge in plan.merges}
    return plan.only(leased), {table: name for table, name in held.items() if table not in leased}


def _merge_all(context: JobContext, plan: Plan, done: DedupTotals) -> None:
    context.progress(f"to merge: {plan}")
    parts = _parts(context, plan)
    waiting = [len(of_merge) for of_merge in parts]
    written: dict[int, list[Merged]] = defaultdict(list)
    groups = 0
    bar = context.bar(len(plan.merges))
    for merged in _run(context, plan, [part for of_merge in parts for part in of_merge]):
        written[merged.merge].append(merged)
        for line in merged.said:
            context.progress(line)
        if len(written[merged.merge]) == waiting[merged.merge]:
            _publish(context, plan, merged.merge, written.pop(merged.merge), done)
            groups += 1
            speed = f"{bar.per_second(done.rows_in):,.0f} versions/s"
            bar.reach(groups, f"{groups:,} of {len(plan.merges):,} group(s) merged, {speed}")
    remove_unpublished(context, plan.tables)
    # Tables that a flush is working on are left to it.
    names = {table_lease(*table): table for table in plan.tables}
    free = context.leases.acquire_available(context.connection, names)
    _, problems = write_pending(context, sorted(names[name] for name in free))
    done.unwritten += problems


def _parts(context: JobContext, plan: Plan) -> list[list[Part]]:
    """Splits each merge into parts that fit into memory and fill at least one file."""
    slice_bytes = min(context.settings.flush.slice_mb * MB // EXPANSION, context.settings.dedup.file_mb * MB)
    return [
        list(_slices(context.storage, plan.merges, merge_index, -(-merge.group.size_bytes // slice_bytes)))
        for merge_index, merge in enumerate(plan.merges)
    ]


def _slices(storage: StorageOptions, merges: Sequence[Merge], merge_index: int, count: int) -> Iterator[Part]:
    """Splits a merge into parts with about equally many keys."""
    if count <= 1:
        yield Part(merge_index)
        return
    merge = merges[merge_index]
    names = ", ".join(f"c{column.column_id}" for column in merge.definition.key)
    reader = open_reader(storage, memory_mb=READER_MB, threads=2)
    try:
        sample = reader.execute(
            f"SELECT {names} FROM (SELECT * FROM ({scan_of(merge, Part(merge_index), merge.definition.key)}) "
            f"USING SAMPLE reservoir({SAMPLED_KEYS * count} ROWS) REPEATABLE (1)) ORDER BY {names}"
        ).fetchall()
    except (duckdb.Error, OSError):  # the task that reads it names the batch
        sample = []
    finally:
        reader.close()
    bounds = dict.fromkeys(sample[len(sample) * number // count] for number in range(1, count)) if sample else {}
    for low, high in pairwise([None, *bounds, None]):
        yield Part(merge_index, low, high)


def _run(context: JobContext, plan: Plan, parts: Sequence[Part]) -> Iterator[Merged]:
    """Runs the parts on Spark and yields results as they finish; small merges share a task."""
    from pyspark import SparkContext

    spark = SparkContext.getOrCreate()
    settings = context.settings
    destination = Destination(
        context.run.job_id, installation_id(context.connection), context.storage, settings.flush.file_mb * MB,
        settings.flush.bloom_filter_fpp,
    )  # fmt: skip
    environment = MergeEnvironment(context.dsn, settings.flush.slice_mb * MB, destination)
    merges = spark.broadcast(plan.merges)
    tasks = list(_tasks(plan, parts, settings.dedup.file_mb * MB // EXPANSION))
    context.progress(f"{len(parts):,} part(s) in {len(tasks):,} task(s) on {spark.master}")

    def run(task: list[Part]) -> list[Merged] | LakeforkError:
        return attempt(lambda: run_parts(environment, merges.value, task))

    for found in spark.parallelize(tasks, len(tasks)).map(run).toLocalIterator(prefetchPartitions=True):
        yield from unwrap(found)


def _tasks(plan: Plan, parts: Sequence[Part], task_bytes: int) -> Iterator[list[Part]]:
    parts_of: dict[int, int] = defaultdict(int)
    for part in parts:
        parts_of[part.merge] += 1
    task: list[Part] = []
    size = 0
    for part in parts:
        weight = plan.merges[part.merge].group.size_bytes // parts_of[part.merge]
        if task and size + weight > task_bytes:
            yield task
            task, size = [], 0
        task.append(part)
        size += weight
    if task:
        yield task


def _publish(context: JobContext, plan: Plan, merge_index: int, parts: Sequence[Merged], done: DedupTotals) -> None:
    merge = plan.merges[merge_index]
    name = _name(merge.definition)
    problems = [part.problem for part in parts if part.problem]
    if problems:
        done.unwritten.append(f"{name} was not merged: {problems[0]}")
        return
    read = sum(part.read for part in parts)
    if read != merge.group.rows:
        done.unwritten.append(
            f"{name} was not merged: its batches hold {read:,} rows, and the catalog says {merge.group.rows:,} "
            "(run `lakefork run catalog_fsck`)"
        )
        return
    files = [file for part in parts for file in part.files]
    context.check_leases()
    try:
        snapshot_id = context.commit_idempotently(
            lambda: _commit(context, plan, merge, files, DedupTotals.counts(merge, read, files))
        )
    except (ConflictError, NotFoundError) as error:
        context.progress(f"{name}: {len(merge.group.batches)} batches are left as they are: {error}")
        return
    done.add(merge, read, files, snapshot_id)


def _commit(context: JobContext, plan: Plan, merge: Merge, files: Sequence[WrittenFile], counts: dict[str, int]) -> int:
    definition = merge.definition
    changes = Changes()
    for batch in merge.group.batches:
        changes.end("ducklake_data_file", data_file_id=batch.file_id)
    for file in files:
        changes.add_batch(definition.table_id, below_table(definition, file.path), file.facts, user_id=file.user_id)
    wanted = {
        "job_id": context.run.job_id, "run_id": context.run.run_id, "catalog_id": definition.catalog_id,
        "table_id": definition.table_id, "user_id": merge.user_id or "",
        "directory": batch_directory(definition, merge.user_id), "base": plan.base,
        "changes": Jsonb(changes.as_json()), "paths": [file.path for file in files],
        "commit_key": f"dedup/{context.run.run_id}/{definition.catalog_id}/{merge.group.batches[0].file_id}",
        "counts": Jsonb(counts),
    }  # fmt: skip
    with domain_errors():
        row = context.connection.execute(load(__package__)["publish_dedup"], wanted).fetchone()
    assert row is not None  # noqa: S101 - the function returns one row or raises
    return int(row["snapshot_id"])


def _name(definition: TableDefinition) -> str:
    return f"{definition.catalog}.{definition}"
