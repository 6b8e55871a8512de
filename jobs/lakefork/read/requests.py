"""Requests of readers, and results of scans."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lakefork.model.predicates import Predicate
from lakefork.model.tables import Column, TableDefinition
from lakefork.read.pruning import ScanPlan
from lakefork.read.tables import FoundTable

HotParts = Mapping[str, tuple[TableDefinition, pa.Table]]  # by name, with the definition that rows were written under


@dataclass(frozen=True)
class ScanRequest:
    """The requested rows and columns of a table; row_filter: SQL over its columns; user_id None: all users.

    predicates: on key and _seq; filters: on other columns, which only the newest versions must satisfy.
    """

    table: FoundTable
    columns: tuple[Column, ...]
    user_id: str | None = None
    predicates: tuple[Predicate, ...] = ()
    include_deleted: bool = False
    row_filter: str | None = None
    snapshot: int | None = None
    filters: tuple[Predicate, ...] = ()
    superseded_too: bool = False  # also remaining older versions, marked by _superseded


@dataclass(frozen=True)
class ScanResult:
    """What a scan found before batches are opened: hot versions and the batches to read."""

    request: ScanRequest
    hot: HotParts
    batches: int
    plan: ScanPlan

    @property
    def definition(self) -> TableDefinition:
        return self.request.table.definition

    @property
    def hot_versions(self) -> int:
        return sum(part.num_rows for _, part in self.hot.values())


@dataclass(frozen=True)
class RowsQuery:
    """SQL for a DuckDB reader; None: no rows. relations: what it names besides batches."""

    sql: str | None
    schema: pa.Schema
    relations: Mapping[str, pa.Table] = field(default_factory=dict)
