"""Runs snapshot_dedup: merges the batches of each owner into few sorted ones; each group is a commit of its own."""

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
from lakefork.catalog.flushes import Table, find_definitions, table_lease, tables_with_leftovers, work_lease
from lakefork.catalog.roots import installation_id
from lakefork.cold.layout import batch_directory, below_table
from lakefork.cold.reader import open_reader
from lakefork.cold.statistics import parse_bound
from lakefork.database_errors import domain_errors
from lakefork.errors import ConflictError, LakeforkError, NotFoundError, StorageError
from lakefork.maintenance.dedup import Candidate, Group, Holds, Limits, plan_groups
from lakefork.maintenance.ranges import KeyRange
from lakefork.params import SnapshotDedupParams
from lakefork.queries import load
from lakefork.seqid import EPOCH, NODE_BITS, SEQUENCE_BITS
from lakefork.spark.batch_files import Destination, WrittenFile
from lakefork.spark.dedup_task import READER_MB, Merge, Merged, MergeEnvironment, Part, run_parts, scan_of
from lakefork.spark.job import JobContext
from lakefork.spark.manifests import write_pending
from lakefork.spark.staging import discard_leftovers, remove_what_did_not_count
from lakefork.spark.tasks import attempt, good
from lakefork.storage import StorageOptions
from lakefork.tables import TableDefinition

MB = 1 << 20
EXPANSION = 4  # so many times its size on disk a batch may need in memory; where it is more, parts are halved
SAMPLED_KEYS = 1_000  # per part


@dataclass
class Plan:
    base: int
    merges: list[Merge] = field(default_factory=list)

    @property
    def tables(self) -> list[Table]:
        return sorted({_table(merge.definition) for merge in self.merges})

    def only(self, tables: Collection[Table]) -> "Plan":
        return Plan(self.base, [merge for merge in self.merges if _table(merge.definition) in tables])

    def __str__(self) -> str:
        batches = sum(len(merge.group.batches) for merge in self.merges)
        size = sum(merge.group.size_bytes for merge in self.merges)
        return (
            f"{batches:,} batches in {len(self.merges):,} group(s) of {len(self.tables):,} table(s), "
            f"{size / MB:,.1f} MB"
        )


@dataclass
class Done:
    """What was published; unwritten: what was not, and why."""

    tables: dict[Table, int] = field(default_factory=dict)  # with the last snapshot of each
    users: set[tuple[Table, str]] = field(default_factory=set)
    rows_in: int = 0
    rows_out: int = 0
    files_written: int = 0
    bytes_written: int = 0
    files_replaced: int = 0
    bytes_replaced: int = 0
    snapshot_id: int | None = None
    unwritten: list[str] = field(default_factory=list)

    def add(self, merge: Merge, read: int, files: Sequence[WrittenFile], snapshot_id: int) -> None:
        table = _table(merge.definition)
        self.tables[table] = snapshot_id
        self.users |= {(table, merge.user_id)} if merge.user_id is not None else set()
        self.rows_in += read
        self.rows_out += sum(file.facts.record_count for file in files)
        self.files_written += len(files)
        self.bytes_written += sum(file.facts.size_bytes for file in files)
        self.files_replaced += len(merge.group.batches)
        self.bytes_replaced += merge.group.size_bytes
        self.snapshot_id = max(self.snapshot_id or 0, snapshot_id)

    def as_result(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if name != "unwritten"}
        return {**counts, "tables": len(self.tables), "users": len(self.users)}


def run_dedup(context: JobContext, params: SnapshotDedupParams) -> dict[str, Any]:
    done = Done()
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
        context.progress(f"{name} is being deduplicated by another run: left to it")
    if not done.tables:
        context.progress("nothing is worth merging")
    if done.unwritten:
        raise StorageError("; ".join(done.unwritten))
    return done.as_result()


def _plan(context: JobContext, params: SnapshotDedupParams) -> Plan:
    """What to merge, by what the catalog says in one transaction."""
    settings = context.settings.dedup
    limits = Limits(
        params.min_batches or settings.min_batches, settings.superseded_share, settings.file_mb * MB,
        settings.group_mb * MB,
    )  # fmt: skip
    wanted = {"catalog": params.catalog, "namespace": params.namespace, "table": params.table}
    with context.connection.transaction():
        context.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        plan = Plan(newest_snapshot(context.connection))
        rows = context.connection.execute(load("lakefork.catalog")["dedup_candidates"], wanted).fetchall()
        tables = list(dict.fromkeys((row["catalog_id"], row["table_id"]) for row in rows))
        defined = find_definitions(context.connection, tables)
        oldest = _oldest_transaction(context)
    for (catalog_id, table_id, user_id), group in groupby(
        rows, lambda row: (row["catalog_id"], row["table_id"], row["user_id"])
    ):
        if (catalog_id, table_id) in defined:
            definition = defined[catalog_id, table_id].definition
            candidates = [_candidate(definition, row) for row in group]
            forget = forget_before(definition.deleted_retention, oldest)
            for found in plan_groups(candidates, limits, forget):
                plan.merges.append(_merge(definition, user_id, found, limits, forget))
    return plan


def _candidate(definition: TableDefinition, row: dict[str, Any]) -> Candidate:
    kind = definition.key[0].type
    return Candidate(
        row["data_file_id"], row["file_order"], row["path"], row["record_count"], row["file_size_bytes"],
        int(row["min_seq"] or 0), int(row["max_seq"]) if row["max_seq"] else None,
        KeyRange(parse_bound(row["key_low"], kind), parse_bound(row["key_high"], kind)),
        _HOLDS.get((row["min_deleted"], row["max_deleted"]), Holds.BOTH),
    )  # fmt: skip


_HOLDS = {("0", "0"): Holds.LIVE, ("1", "1"): Holds.TOMBSTONES}


def _merge(definition: TableDefinition, user_id: str, group: Group, limits: Limits, forget: int | None) -> Merge:
    bytes_per_row = group.size_bytes / max(group.rows, 1)
    rows_per_file = max(1, int(limits.target_bytes / max(bytes_per_row, 0.01)))
    owner = user_id if definition.per_user else None
    return Merge(definition, owner, group, forget if group.alone else None, rows_per_file)


def forget_before(retention_seconds: int | None, oldest_transaction: datetime.datetime) -> int | None:
    """Tombstones with a smaller _seq are old enough to go; None: they are kept for ever."""
    if retention_seconds is None:
        return None
    now = datetime.datetime.now(datetime.UTC)
    moment = min(now - datetime.timedelta(seconds=retention_seconds), oldest_transaction)
    return max(0, int((moment - EPOCH).total_seconds() * 1000)) << (NODE_BITS + SEQUENCE_BITS)


def _oldest_transaction(context: JobContext) -> datetime.datetime:
    """Whoever began to read before a row was deleted may still write what relies on it.

    Where others' transactions are hidden (role pg_read_all_stats shows them), one may be as old as can be.
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
    """Also of tables that were dropped, or have nothing to merge any more."""
    job = context.run.job
    names = {work_lease(job, table): table for table in tables_with_leftovers(context.connection, job)}
    leased = context.leases.take_free(context.connection, names)
    discard_leftovers(context, sorted(names[name] for name in leased))


def _lease(context: JobContext, plan: Plan) -> tuple[Plan, dict[Table, str]]:
    """What can be merged now, and the tables with their names that another dedup works on; flushes go on meanwhile."""
    names = {work_lease(context.run.job, table): table for table in plan.tables}
    leased = {names[name] for name in context.leases.take_free(context.connection, names)}
    held = {_table(merge.definition): _name(merge.definition) for merge in plan.merges}
    return plan.only(leased), {table: name for table, name in held.items() if table not in leased}


def _merge_all(context: JobContext, plan: Plan, done: Done) -> None:
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
    remove_what_did_not_count(context, plan.tables)
    # Where a flush is at work, it writes these too.
    names = {table_lease(*table): table for table in plan.tables}
    free = context.leases.take_free(context.connection, names)
    _, problems = write_pending(context, sorted(names[name] for name in free))
    done.unwritten += problems


def _parts(context: JobContext, plan: Plan) -> list[list[Part]]:
    """Each merge in parts that fit into memory and make at least one file."""
    slice_bytes = min(context.settings.flush.slice_mb * MB // EXPANSION, context.settings.dedup.file_mb * MB)
    return [
        list(_slices(context.storage, plan.merges, place, -(-merge.group.size_bytes // slice_bytes)))
        for place, merge in enumerate(plan.merges)
    ]


def _slices(storage: StorageOptions, merges: Sequence[Merge], place: int, count: int) -> Iterator[Part]:
    """Of about equally many keys."""
    if count <= 1:
        yield Part(place)
        return
    merge = merges[place]
    names = ", ".join(f"c{column.column_id}" for column in merge.definition.key)
    reader = open_reader(storage, memory_mb=READER_MB, threads=2)
    try:
        sample = reader.execute(
            f"SELECT {names} FROM (SELECT * FROM ({scan_of(merge, Part(place), merge.definition.key)}) "
            f"USING SAMPLE reservoir({SAMPLED_KEYS * count} ROWS) REPEATABLE (1)) ORDER BY {names}"
        ).fetchall()
    except (duckdb.Error, OSError):  # the task that reads it says which batch it is
        sample = []
    finally:
        reader.close()
    bounds = dict.fromkeys(sample[len(sample) * number // count] for number in range(1, count)) if sample else {}
    for low, high in pairwise([None, *bounds, None]):
        yield Part(place, low, high)


def _run(context: JobContext, plan: Plan, parts: Sequence[Part]) -> Iterator[Merged]:
    """Small merges share a task; what is done comes as it is done."""
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
        yield from good(found)


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


def _publish(context: JobContext, plan: Plan, place: int, parts: Sequence[Merged], done: Done) -> None:
    merge = plan.merges[place]
    name = _name(merge.definition)
    problems = [part.problem for part in parts if part.problem]
    if problems:
        done.unwritten.append(f"{name} was not merged: {problems[0]}")
        return
    read = sum(part.read for part in parts)
    if read != merge.group.rows:
        done.unwritten.append(
            f"{name} was not merged: its batches hold {read:,} rows, and the catalog says {merge.group.rows:,} "
            "(`lakefork run catalog_fsck` says more)"
        )
        return
    files = [file for part in parts for file in part.files]
    context.check_leases()
    try:
        snapshot_id = context.commit_surely(lambda: _commit(context, plan, merge, files))
    except (ConflictError, NotFoundError) as error:
        context.progress(f"{name}: {len(merge.group.batches)} batches are left as they are: {error}")
        return
    done.add(merge, read, files, snapshot_id)


def _commit(context: JobContext, plan: Plan, merge: Merge, files: Sequence[WrittenFile]) -> int:
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
    }  # fmt: skip
    with domain_errors():
        row = context.connection.execute(load("lakefork.catalog")["publish_dedup"], wanted).fetchone()
    assert row is not None  # noqa: S101 - the function returns one row or raises
    return int(row["snapshot_id"])


def _table(definition: TableDefinition) -> Table:
    return definition.catalog_id, definition.table_id


def _name(definition: TableDefinition) -> str:
    return f"{definition.catalog}.{definition}"
