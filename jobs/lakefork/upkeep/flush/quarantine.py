"""Keeps the files of the last failed audit of each table."""

from collections.abc import Sequence

from lakefork.catalog.staging import forget_staged
from lakefork.cold.layout import below_table
from lakefork.model.tables import TableDefinition, TableRef
from lakefork.queries import load
from lakefork.spark.job import JobContext
from lakefork.storage import move_file
from lakefork.storage.listing import list_tree
from lakefork.storage.paths import path_part
from lakefork.storage.removal import remove_empty_directories, remove_many
from lakefork.upkeep.flush.task import StagedFile
from lakefork.upkeep.staging import in_parts, split_by_mark, under_leases


def quarantine_of(context: JobContext, definition: TableDefinition) -> str:
    return f"{definition.path}/.quarantine/{path_part(context.run.job_id)}"


def move_to_quarantine(context: JobContext, definition: TableDefinition, files: Sequence[StagedFile]) -> str:
    """Moves files to the quarantine and removes those of earlier audits; returns a message with their path."""
    where = quarantine_of(context, definition)
    table = definition.ref
    try:
        for some in in_parts(files):
            with under_leases(context, [table]):
                for file in some:
                    move_file(file.path, f"{where}/{below_table(definition, file.path)}", context.storage)
                forget_staged(context.connection, [file.path for file in some])
        _remove_older(context, table)
    except OSError as error:
        return f"its staged files cannot be moved to {where}: {str(error).splitlines()[0]}"
    return f"its {len(files)} staged file(s) are in {where}"


def _remove_older(context: JobContext, table: TableRef) -> None:
    """Removes files of earlier failed audits, which were never published.

    Only files with the mark of the audited job are removed.
    """
    sql = load(__package__)
    asked = {"catalog_id": table[0], "table_id": table[1], "job_id": context.run.job_id}
    for row in context.connection.execute(sql["older_quarantines"], asked).fetchall():
        paths = _files_in(row["quarantine"], context)
        job_of = {path: str(row["job_id"]) for path in paths}
        own, foreign = split_by_mark(job_of, context.storage)
        failed = 0
        for some in in_parts(own):
            with under_leases(context, [table]):
                failed += sum(not one.ok for one in remove_many(some, context.storage))
        if failed:
            context.progress(f"{failed} of {len(paths)} file(s) in {row['quarantine']} cannot be removed")
            continue
        if foreign:
            context.progress(f"{len(foreign)} file(s) in {row['quarantine']} were written by somebody else and stay")
        remove_empty_directories({path.rpartition("/")[0] for path in own}, row["quarantine"])
        context.connection.execute(sql["forget_quarantine"], {**asked, "quarantine": row["quarantine"]})
        context.progress(f"{len(own)} file(s) of an earlier audit were removed from {row['quarantine']}")


def _files_in(directory: str, context: JobContext) -> list[str]:
    try:
        return [file.path for file in list_tree(directory, context.storage)]
    except FileNotFoundError:
        return []
