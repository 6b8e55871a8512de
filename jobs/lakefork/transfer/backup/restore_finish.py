"""What follows a restore: manifests and schema files, made from the catalog. What is missing is made later."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from lakefork.catalog.catalogs import Catalog
from lakefork.catalog.definitions import find_definitions
from lakefork.cold.schema_writer import AGAIN, SchemaNote, SchemaWriter
from lakefork.errors import StorageError
from lakefork.manifests.write import PendingManifests, write_manifests
from lakefork.model.tables import TableRef
from lakefork.queries import load
from lakefork.spark.job import JobContext
from lakefork.transfer.backup.executors import start_spark

_SQL = load(__package__)
MANIFESTS_AT_ONCE = 2_500
MANIFESTS_FOR_SPARK = 1_000


def write_manifests_of(context: JobContext, catalog_id: int, table_ids: Sequence[int]) -> None:
    """Those that cannot be written now are pending, and written by the next flush."""
    pending = _pending(context, catalog_id, table_ids)
    installation = context.installation
    if sum(len(one.users) for one in pending) >= MANIFESTS_FOR_SPARK:
        context.connection.execute("SELECT lakefork.analyze_files()")
        spark = start_spark(context)
        problems = (
            spark.parallelize(pending, len(pending)).map(lambda one: write_manifests(installation, one)).collect()
        )
    else:
        problems = [write_manifests(installation, one) for one in pending]
    for problem in filter(None, problems):
        context.progress(f"{problem}; the next flush writes it")


def _pending(context: JobContext, catalog_id: int, table_ids: Sequence[int]) -> list[PendingManifests]:
    defined = find_definitions(context.connection, [TableRef(catalog_id, table_id) for table_id in table_ids])
    rows = context.connection.execute(
        _SQL["pending_manifests"], {"catalog_id": catalog_id, "tables": list(table_ids)}
    ).fetchall()
    found = []
    for table_id, group in groupby(rows, lambda row: row["table_id"]):
        of_table, definition = list(group), defined[TableRef(catalog_id, table_id)].definition
        for start in range(0, len(of_table), MANIFESTS_AT_ONCE):
            some = of_table[start : start + MANIFESTS_AT_ONCE]
            columns = (tuple(row[name] for row in some) for name in ("user_id", "directory", "run_id"))
            users, directories, run_ids = columns
            found.append(
                PendingManifests(
                    context.run.job_id, catalog_id, table_id, definition.path, users, directories, run_ids,
                    definition.per_user,
                )
            )  # fmt: skip
    return found


def note_schema_files(context: JobContext, catalog: Catalog, namespaces: Sequence[str]) -> list[SchemaNote]:
    """Before the commit: a restore that is cut off after it leaves notes for others."""
    writer = SchemaWriter(context.storage)
    return [writer.note(context.connection, catalog, namespace) for namespace in namespaces]


def write_schema_files(
    context: JobContext, catalog: Catalog, noted: Sequence[SchemaNote], tables: Mapping[str, Sequence[str]]
) -> None:
    """tables: by namespace, those that are there now and those that were there before."""
    writer = SchemaWriter(context.storage)
    try:
        for namespace, names in tables.items():
            writer.write(context.connection, catalog, namespace, names, newest_only=False)
        problems = [writer.write_noted(context.connection, one) for one in noted]
    except (OSError, StorageError) as error:
        problems = [f"schema files cannot be written: {error}; {AGAIN}"]
    for problem in filter(None, problems):
        context.progress(problem)
