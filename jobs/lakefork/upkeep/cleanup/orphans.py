"""Finds files in storage that nobody needs: lists them on Spark, and compares them with all catalogs page by page.

Only directories with the marker of this installation are listed (orphan_roots.py).
"""

import datetime
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.connection import Connection
from lakefork.catalog.roots import installation_id, never_given_out
from lakefork.cold.batch_files import WHY_TAKEN
from lakefork.cold.layout import USER_VARIABLE
from lakefork.database_errors import database_error
from lakefork.errors import LakeforkError, NotFoundError, StorageError
from lakefork.queries import load
from lakefork.spark.job import JobContext
from lakefork.spark.tasks import unwrap
from lakefork.storage import StorageOptions
from lakefork.storage.installation import Installation
from lakefork.storage.listing import StoredFile, list_tree
from lakefork.storage.paths import is_below, place, spellings
from lakefork.upkeep.cleanup.orphan_plan import (
    Claims,
    Orphan,
    Root,
    directories_to_check,
    find_linked_roots,
    paths_to_check,
    plan_roots,
    spared_by_claim,
    spared_without_claims,
)
from lakefork.upkeep.cleanup.orphan_roots import Part, RootSurvey, canonical_path_in, survey_root

PAGE = 5_000  # files per query of the catalogs
SAMPLES = 20
TASKS_PER_CORE = 4
PARTS_PER_TASK = 50


@dataclass(frozen=True)
class ForeignBatches:
    """Batches in our directories that this installation did not write: their number, and an example."""

    batches: int
    example: str


def find_orphans(context: JobContext, catalog: str | None, older_than: datetime.timedelta) -> Iterator[Orphan]:
    """Files below the data paths and LOCATIONs of all catalogs, or of one, that nobody needs. Removes nothing.

    What guards the others: a file is spared if any catalog refers to it, live, dropped or at a retained snapshot, if it
    is scheduled, staged or quarantined, if it is a manifest of a table or a schema file of a catalog, if it is in the
    trash, or if it is younger than older_than: 24 h are longer than any run takes from writing a file to publishing it.
    Directories without the marker of this installation, and roots that are one by a link, are left alone; so are
    batches with numbers that were never given out here. Directories of other catalogs inside a root are left to those;
    links are not followed; in a LOCATION only files with names that flush gives are looked at. Nothing is an orphan on
    doubt: a listing or a query that fails ends the run, and so does a root without any of its newest files. Whoever
    deletes asks again (known_paths), under the fence.
    """
    cutoff = datetime.datetime.now(datetime.UTC) - older_than
    wanted = _wanted(context.connection, catalog)
    roots = [(root, wanted is None or root.is_of(wanted)) for root in plan_roots(_roots(context.connection))]
    if not roots:
        return
    from pyspark import SparkContext

    spark = SparkContext.getOrCreate()
    at_once = TASKS_PER_CORE * spark.defaultParallelism
    installation, identity = context.installation, installation_id(context.connection)
    found = (
        spark.parallelize(roots, min(len(roots), at_once))
        .map(lambda one: survey_root(installation, identity, one[0], listed=one[1]))
        .collect()
    )
    groups = _groups(_parts_to_list(context, [unwrap(one) for one in found]), at_once)
    context.progress(f"{len(roots):,} root(s) to list in {len(groups):,} task(s) on {spark.master}")
    for start in range(0, len(groups), at_once):  # only the results of one round are in memory
        tasks = groups[start : start + at_once]
        found = spark.parallelize(tasks, len(tasks)).flatMap(lambda parts: _list(installation, parts, cutoff)).collect()
        yield from _report_foreign(context, [unwrap(one) for one in found])


def _parts_to_list(context: JobContext, surveyed: Sequence[RootSurvey]) -> list[Part]:
    linked = find_linked_roots({one.place: one.real for one in surveyed if one.real})
    for problem in dict.fromkeys(linked.values()):
        context.progress(f"{problem}; both are skipped")
    unmarked = [path for one in surveyed for path in one.unmarked]
    if unmarked:
        context.progress(
            f"{len(unmarked):,} directories without a marker of this installation are skipped, as {unmarked[0]}"
        )
    return [part for one in surveyed if one.place not in linked for part in one.parts]


def _report_foreign(context: JobContext, found: Iterable[Orphan | ForeignBatches]) -> Iterator[Orphan]:
    for one in found:
        if isinstance(one, Orphan):
            yield one
        else:
            context.progress(f"{one.batches:,} batch(es) are left alone, for example {one.example}: {WHY_TAKEN}")


def known_paths(connection: Connection, paths: Iterable[str]) -> set[str]:
    """Returns which of these files, as find_orphans yields them, are needed after all."""
    places = {path: place(path) for path in paths}
    claims = _claims(connection, list(places.values()))
    return {path for path, where in places.items() if spared_by_claim(where, claims)}


def _roots(connection: Connection) -> list[Root]:
    sql = load(__package__)
    if found := connection.execute(sql["unplaced"]).fetchone():
        raise StorageError(f"{found['problem']}: its files cannot be distinguished from orphans")
    return [
        Root(
            row["path"], row["place"], (row["catalog_id"],), row["location"] and _pattern(row["location"]),
            row["known"], tuple(row["samples"]),
        )
        for row in connection.execute(sql["storage_roots"], {"samples": SAMPLES})
    ]  # fmt: skip


def _pattern(location: str) -> str:
    head, variable, tail = location.partition(USER_VARIABLE)
    return f"{re.escape(head)}{'[^/]*' if variable else ''}{re.escape(tail)}/"


def _wanted(connection: Connection, catalog: str | None) -> set[int] | None:
    if catalog is None:
        return None
    found = connection.execute(load(__package__)["catalogs_named"], {"name": catalog})
    if wanted := {row["catalog_id"] for row in found}:
        return wanted
    raise NotFoundError(f"catalog {catalog!r} does not exist; `lakefork status` lists catalogs")


def _groups(parts: list[Part], at_least: int) -> list[list[Part]]:
    """Groups parts in a fixed random order, because their sizes are unknown."""
    random.Random(0).shuffle(parts)  # noqa: S311
    groups = min(len(parts), max(at_least, len(parts) // PARTS_PER_TASK))
    return [parts[start::groups] for start in range(groups)]


def _list(
    installation: Installation, parts: Sequence[Part], cutoff: datetime.datetime
) -> Iterator[Orphan | ForeignBatches | LakeforkError]:
    """Lists files in a Spark task. Final errors are returned as results, so that their message reaches the user."""
    not_ours: list[str] = []
    try:
        with psycopg.connect(installation.dsn, autocommit=True, row_factory=dict_row) as connection:
            files = _candidates(parts, installation.storage, cutoff)
            while page := list(islice(files, PAGE)):
                orphans = _orphans(connection, page)
                foreign = never_given_out(connection, [one.path for one in orphans])
                not_ours += foreign
                yield from (one for one in orphans if one.path not in foreign)
        if not_ours:
            yield ForeignBatches(len(not_ours), min(not_ours))
    except OSError as error:
        yield StorageError(f"storage cannot be listed: {str(error).splitlines()[0]}")
    except psycopg.Error as error:
        yield database_error(error)
    except LakeforkError as error:
        yield error


def _candidates(
    parts: Sequence[Part], storage: StorageOptions, cutoff: datetime.datetime
) -> Iterator[tuple[Root, StoredFile]]:
    for part in parts:
        inner = [one for one in part.root.inner if is_below(one, canonical_path_in(part.root, part.path))]
        for file in list_tree(part.path, storage, skip=inner, span=part.span):
            if not spared_without_claims(part.root, file.path, file.modified, cutoff):
                yield part.root, file


def _orphans(connection: Connection, page: Sequence[tuple[Root, StoredFile]]) -> list[Orphan]:
    by_real = {file.path: _real(root, file.path) for root, file in page}
    claims = _claims(connection, [*by_real, *(real for path, real in by_real.items() if real != path)])
    return [
        Orphan(root.path + file.path[len(root.place) :], file.size_bytes, file.modified, root.path)
        for root, file in page
        if not any(spared_by_claim(path, claims) for path in {file.path, by_real[file.path]})
    ]


def _real(root: Root, path: str) -> str:
    """Returns the resolved path of a file, because a catalog may refer to it that way."""
    return root.real + path[len(root.place) :] if root.real else path


def _claims(connection: Connection, paths: Sequence[str]) -> Claims:
    """Asks the catalogs with one query; a claim under another spelling counts."""
    of_spelling: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for asked in paths_to_check(path):
            for spelling in spellings(asked):
                of_spelling[spelling].add(asked)
    directories = {directory for path in paths for directory in directories_to_check(path)}
    rows = connection.execute(
        load(__package__)["claims"], {"paths": list(of_spelling), "directories": list(directories)}
    )
    by_path: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        own = {row["path"]} & directories
        for path in of_spelling.get(row["path"], own) | own:
            by_path[path].add(row["claim"])
    return Claims(by_path)
