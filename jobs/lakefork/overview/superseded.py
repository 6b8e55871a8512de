"""How many rows of tables may have a newer version elsewhere, as snapshot_dedup sees it: by bounds of their keys."""

import itertools
from collections.abc import Sequence

from lakefork.catalog.connection import Connection
from lakefork.cold.statistics import bound_parser
from lakefork.column_types import column_type
from lakefork.maintenance.dedup import Candidate, Holds, superseded_at_most
from lakefork.maintenance.ranges import KeyRange
from lakefork.overview.lake import Row
from lakefork.queries import load

_SQL = load(__package__)
FILES_COUNTED = 1_000  # of one table; of more, the share of these stands for all
FILES_AT_A_GLANCE = 200  # of each of many tables; those that have more need a look of their own


def with_superseded_share(connection: Connection, rows: Sequence[Row]) -> list[Row]:
    """The same rows, each of one table, with the share of it; None: it has no files, or too many to say it at once."""
    tables = [(row["catalog_id"], row["table_id"]) for row in rows]
    shares = superseded_shares(connection, tables, FILES_AT_A_GLANCE)
    return [{**row, "superseded_share": shares.get((row["catalog_id"], row["table_id"]))} for row in rows]


def superseded_shares(
    connection: Connection, tables: Sequence[tuple[int, int]], most_files: int = 2**31
) -> dict[tuple[int, int], float]:
    """By one query: the share of rows of each table that another batch of their owner may have a newer version of."""
    found = connection.execute(
        _SQL["superseded_files"],
        {
            "catalogs": [one[0] for one in tables], "tables": [one[1] for one in tables], "most": most_files,
            "limit": FILES_COUNTED,
        },
    ).fetchall()  # fmt: skip
    grouped = itertools.groupby(found, key=lambda file: (file["catalog_id"], file["table_id"]))
    return {table: _share(list(files)) for table, files in grouped}


def _share(files: Sequence[Row]) -> float:
    rows = sum(file["rows"] for file in files)
    owners = itertools.groupby(files, key=lambda file: file["user_id"])
    doubled = sum(_doubled([_candidate(file) for file in batches]) for _, batches in owners)
    return round(doubled / rows, 3) if rows else 0.0


def _doubled(batches: Sequence[Candidate]) -> float:
    return superseded_at_most(batches) * sum(batch.rows for batch in batches)


def _candidate(file: Row) -> Candidate:
    bound = bound_parser(column_type(file["column_type"]))
    return Candidate(
        file["data_file_id"], file["published"], "", file["rows"], 0, 0, None,
        KeyRange(bound(file["low"]), bound(file["high"])), Holds.BOTH,
    )  # fmt: skip
