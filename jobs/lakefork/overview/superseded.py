"""Estimates how many rows may have a newer version in another batch, by key bounds, as snapshot_dedup does."""

import itertools
from collections.abc import Sequence

from lakefork.catalog.connection import Connection
from lakefork.cold.statistics import bound_parser
from lakefork.model.batches import BatchContent, Candidate, max_superseded_share
from lakefork.model.column_types import column_type
from lakefork.model.key_ranges import KeyRange
from lakefork.overview.lake import Row
from lakefork.queries import load

_SQL = load(__package__)
FILES_PER_TABLE = 1_000  # for one table; of more files, the share of these stands for all
FILES_PER_LISTED_TABLE = 200  # per table in a list; tables with more files are left out


def with_superseded_share(connection: Connection, rows: Sequence[Row]) -> list[Row]:
    """Adds the superseded share to rows of one table each; None: no files, or too many to estimate in a list."""
    tables = [(row["catalog_id"], row["table_id"]) for row in rows]
    shares = superseded_shares(connection, tables, FILES_PER_LISTED_TABLE)
    return [{**row, "superseded_share": shares.get((row["catalog_id"], row["table_id"]))} for row in rows]


def superseded_shares(
    connection: Connection, tables: Sequence[tuple[int, int]], most_files: int = 2**31
) -> dict[tuple[int, int], float]:
    """Returns for each table the share of rows that may have a newer version in another batch, with one query."""
    found = connection.execute(
        _SQL["superseded_files"],
        {
            "catalogs": [one[0] for one in tables], "tables": [one[1] for one in tables], "most": most_files,
            "limit": FILES_PER_TABLE,
        },
    ).fetchall()  # fmt: skip
    grouped = itertools.groupby(found, key=lambda file: (file["catalog_id"], file["table_id"]))
    return {table: _share(list(files)) for table, files in grouped}


def _share(files: Sequence[Row]) -> float:
    rows = sum(file["rows"] for file in files)
    owners = itertools.groupby(files, key=lambda file: file["user_id"])
    doubled = sum(_superseded_rows([_candidate(file) for file in batches]) for _, batches in owners)
    return round(doubled / rows, 3) if rows else 0.0


def _superseded_rows(batches: Sequence[Candidate]) -> float:
    return max_superseded_share(batches) * sum(batch.rows for batch in batches)


def _candidate(file: Row) -> Candidate:
    bound = bound_parser(column_type(file["column_type"]))
    return Candidate(
        file["data_file_id"], file["published"], "", file["rows"], 0, 0,
        KeyRange(bound(file["low"]), bound(file["high"])), BatchContent.BOTH,
    )  # fmt: skip
