"""Runs fork_provision: creates many forks of one catalog, some at a time, each once."""

import contextlib
import datetime
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lakefork.catalog.catalogs import Catalog, check_data_path, find_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.forks import check_forks, existing_catalogs, fork_catalogs, rows_per_fork
from lakefork.errors import AlreadyExistsError, LakeforkError
from lakefork.model.durations import seconds_of
from lakefork.model.params import ForkProvisionParams
from lakefork.spark.job import JobContext
from lakefork.spark.tasks import attempt, unwrap
from lakefork.storage import places
from lakefork.upkeep.forks.plan import chunks_of, plan_provision

TRIES = 5  # for names that others take concurrently


@dataclass(frozen=True)
class NewForks:
    """Forks that a task created in one transaction; seconds: from connecting to COMMIT."""

    names: tuple[str, ...]
    existing: int
    seconds: float
    snapshot_id: int | None

    @property
    def ms_per_fork(self) -> float:
        """Returns the time per fork; forks of one transaction share its time equally."""
        return 1000 * self.seconds / len(self.names)


def run_fork_provision(context: JobContext, params: ForkProvisionParams) -> dict[str, Any]:
    parent = find_catalog(context.connection, params.parent)
    names = params.fork_names
    taken = existing_catalogs(context.connection, names)
    plan = plan_provision(names, taken, parent.catalog_id, context.run.run_id, if_not_exists=params.if_not_exists)
    if plan.existing:
        context.progress(f"{len(plan.existing):,} of {len(names):,} fork(s) already exist")
    made: list[NewForks] = []
    if plan.missing:
        with contextlib.suppress(AlreadyExistsError):  # another run is creating it; the task checks again
            check_forks(context.connection, params.parent, _data_paths(params, plan.missing))
        _check_places(context, params, plan.missing)
        chunks = chunks_of(plan.missing, rows_per_fork(context.connection, parent.catalog_id))
        made = _make_all(context, params, parent, chunks)
    else:
        context.progress("no forks are missing")
    return _result(len(plan.existing), made)


def _make_all(
    context: JobContext, params: ForkProvisionParams, parent: Catalog, chunks: Sequence[tuple[str, ...]]
) -> list[NewForks]:
    wanted = sum(len(chunk) for chunk in chunks)
    context.progress(f"{wanted:,} fork(s) of {parent.name} to create, in {len(chunks):,} transaction(s)")
    made: list[NewForks] = []
    bar = context.bar(wanted)
    for one in _run(context, params, parent, chunks):
        made.append(one)
        done = sum(len(each.names) + each.existing for each in made)
        bar.reach(done, f"{done:,} of {wanted:,} fork(s), {bar.per_second(done):,.1f}/s{_times(one)}")
    return made


def _times(made: NewForks) -> str:
    if not made.names:
        return ""
    names = made.names[0] if len(made.names) == 1 else f"{made.names[0]} to {made.names[-1]}"
    return f"; {names} in {1000 * made.seconds:,.0f} ms, {made.ms_per_fork:,.1f} ms each"


def _data_paths(params: ForkProvisionParams, names: Sequence[str]) -> dict[str, str | None]:
    template = params.data_path_template
    return {name: template and template.replace("{name}", name) for name in names}


def _check_places(context: JobContext, params: ForkProvisionParams, names: Sequence[str]) -> None:
    """Checks explicit data paths; default paths are next to the parent's."""
    check = partial(check_data_path, context.connection)
    for path in filter(None, _data_paths(params, names).values()):
        places.check_data_path(path, str(context.settings.home), check)


def _run(
    context: JobContext, params: ForkProvisionParams, parent: Catalog, chunks: Sequence[tuple[str, ...]]
) -> Iterator[NewForks]:
    from pyspark import SparkContext

    dsn, run_id = context.dsn, context.run.run_id

    def make(chunk: tuple[str, ...]) -> NewForks | LakeforkError:
        return _attempt(dsn, run_id, params, parent.catalog_id, chunk)

    spark = SparkContext.getOrCreate()
    for found in spark.parallelize(chunks, len(chunks)).map(make).toLocalIterator(prefetchPartitions=True):
        yield unwrap(found)


def _attempt(
    dsn: str, run_id: str, params: ForkProvisionParams, parent_id: int, chunk: tuple[str, ...]
) -> NewForks | LakeforkError:
    for _ in range(TRIES):
        made = attempt(lambda: make_forks(dsn, run_id, params, parent_id, chunk))
        if not isinstance(made, AlreadyExistsError):  # checking again shows whether that is an error
            break
    return made


def make_forks(dsn: str, run_id: str, params: ForkProvisionParams, parent_id: int, chunk: tuple[str, ...]) -> NewForks:
    """Creates forks; a retried task finds what its first attempt committed."""
    started = time.monotonic()
    with connect(dsn, check_version=False) as connection:
        taken = existing_catalogs(connection, chunk)
        plan = plan_provision(chunk, taken, parent_id, run_id, if_not_exists=params.if_not_exists)
        if not plan.missing:
            return NewForks((), len(plan.existing), 0.0, None)
        forks = fork_catalogs(
            connection,
            params.parent,
            _data_paths(params, plan.missing),
            as_of=params.as_of,
            expires_after=_expires_after(params),
            author=params.job,
            run_id=run_id,
        )
    snapshot_id = max(fork.snapshot_id for fork in forks)
    return NewForks(plan.missing, len(plan.existing), time.monotonic() - started, snapshot_id)


def _expires_after(params: ForkProvisionParams) -> datetime.timedelta | None:
    text = params.expires_after
    return None if text is None else datetime.timedelta(seconds=seconds_of(text, "expires_after"))


def _result(existing: int, made: Sequence[NewForks]) -> dict[str, Any]:
    per_fork = sorted(one.ms_per_fork for one in made for _ in one.names)
    transactions = [1000 * one.seconds for one in made if one.names]
    snapshots = [one.snapshot_id for one in made if one.snapshot_id is not None]
    return {
        "forks_created": len(per_fork),
        "forks_existing": existing + sum(one.existing for one in made),
        "ms_per_fork_p50": round(statistics.median(per_fork), 1) if per_fork else None,
        "ms_per_fork_p95": round(per_fork[-1 - len(per_fork) // 20], 1) if per_fork else None,
        "ms_per_fork_max": round(per_fork[-1], 1) if per_fork else None,
        "transactions": len(transactions),
        "ms_per_transaction_max": round(max(transactions), 1) if transactions else None,
        "snapshot_id": max(snapshots, default=None),
    }
