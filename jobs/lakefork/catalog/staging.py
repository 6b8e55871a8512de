"""Files that a run has written, or is about to, and not published yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.catalog.leases import find_held, work_lease
from lakefork.model.tables import TableRef
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class StagedPath:
    """A file that a run staged and has not published."""

    path: str
    catalog_id: int
    table_id: int
    job_id: str

    @property
    def table(self) -> TableRef:
        return TableRef(self.catalog_id, self.table_id)


def reserve_batches(
    connection: Any, job_id: str, catalog_id: int, table_id: int, directories: Sequence[str], counts: Sequence[int]
) -> list[int]:
    """The first of the numbers for new files in each directory; the files count as staged from now on."""
    rows = connection.execute(
        "SELECT first_number FROM lakefork.reserve_batches(%s, %s, %s, %b::text[], %s)",
        (job_id, catalog_id, table_id, list(directories), list(counts)),
    )
    return [row["first_number"] for row in rows]


def staged_files(connection: Connection, job: str, tables: Sequence[TableRef]) -> list[StagedPath]:
    """Files of these tables that runs of a job staged and did not publish."""
    rows = connection.execute(
        _SQL["staged_files"],
        {"job": job, "catalogs": [one for one, _ in tables], "tables": [one for _, one in tables]},
    )
    return [StagedPath(**row) for row in rows]


def forget_staged(connection: Connection, paths: Sequence[str]) -> None:
    connection.execute("DELETE FROM lakefork.staged_file WHERE path = ANY (%s)", (list(paths),))


def tables_with_leftovers(connection: Connection, job: str) -> set[TableRef]:
    """Returns tables with files left by dead runs of a job; some may be dropped."""
    rows = connection.execute(_SQL["staged_tables"], {"job": job})
    tables = {work_lease(job, table): table for table in map(TableRef.of, rows)}
    return set(tables.values()) - {tables[held.name] for held in find_held(connection, tables)}
