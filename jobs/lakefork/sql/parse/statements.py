"""SQL statements as frozen objects: the grammar creates them, the engine executes them."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from lakefork.model.tables import TableKind

OptionValue = str | int | float | bool


@dataclass(frozen=True)
class TableName:
    """A table name. namespace None: the session's."""

    namespace: str | None
    table: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}" if self.namespace else self.table


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement. text: as written, without the semicolon."""

    text: str


@dataclass(frozen=True, kw_only=True)
class CreateNamespace(Statement):
    name: str
    if_not_exists: bool = False
    options: Mapping[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AlterNamespace(Statement):
    name: str
    options: Mapping[str, OptionValue]


@dataclass(frozen=True, kw_only=True)
class DropNamespace(Statement):
    name: str
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of a listing."""

    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class ShowNamespaces(Statement):
    page: Page = Page()


@dataclass(frozen=True, kw_only=True)
class ShowTables(Statement):
    namespace: str | None = None
    page: Page = Page()


@dataclass(frozen=True, kw_only=True)
class ColumnDefinition:
    """A column of CREATE TABLE. default: a parsed expression; None: the column has none."""

    name: str
    type: exp.DataType
    nullable: bool = True
    default: exp.Expr | None = None


@dataclass(frozen=True, kw_only=True)
class FlushPolicy:
    """A flush policy as written, not yet checked."""

    rows: int | None = None
    interval: str | None = None


@dataclass(frozen=True, kw_only=True)
class CreateTable(Statement):
    """CREATE TABLE. kind None: not specified; primary_key: columns in key order."""

    kind: TableKind | None
    name: TableName
    columns: tuple[ColumnDefinition, ...]
    primary_key: tuple[str, ...]
    if_not_exists: bool = False
    location: str | None = None
    location_reference: str | None = None
    flush_policy: FlushPolicy | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AddColumn:
    column: ColumnDefinition


@dataclass(frozen=True, kw_only=True)
class DropColumn:
    name: str
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class ModifyColumn:
    """MODIFY COLUMN. nullable and default are None if not specified."""

    name: str
    type: exp.DataType
    nullable: bool | None = None
    default: exp.Expr | None = None


@dataclass(frozen=True, kw_only=True)
class RenameColumn:
    name: str
    new_name: str


@dataclass(frozen=True, kw_only=True)
class SetOptions:
    options: Mapping[str, OptionValue]


@dataclass(frozen=True, kw_only=True)
class SetFlushPolicy:
    flush_policy: FlushPolicy


AlterAction = AddColumn | DropColumn | ModifyColumn | RenameColumn | SetOptions | SetFlushPolicy


@dataclass(frozen=True, kw_only=True)
class AlterTable(Statement):
    name: TableName
    actions: tuple[AlterAction, ...]


@dataclass(frozen=True, kw_only=True)
class DropTable(Statement):
    kind: TableKind | None
    name: TableName
    if_exists: bool = False
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class KillLiveQuery(Statement):
    live_id: str


@dataclass(frozen=True, kw_only=True)
class DescribeTable(Statement):
    name: TableName


@dataclass(frozen=True, kw_only=True)
class ShowTableStats(Statement):
    name: TableName


@dataclass(frozen=True, kw_only=True)
class ShowManifestCache(Statement):
    pass


@dataclass(frozen=True, kw_only=True)
class FlushTable(Statement):
    name: TableName


@dataclass(frozen=True, kw_only=True)
class BackupDatabase(Statement):
    """namespace is None for all of the catalog."""

    namespace: str | None
    to: str
    incremental: bool = False


@dataclass(frozen=True, kw_only=True)
class RestoreDatabase(Statement):
    """namespace is None for the names that the backup has."""

    namespace: str | None
    source: str
    replace: bool = False
    by_reference: bool = False


@dataclass(frozen=True, kw_only=True)
class ShowBackup(Statement):
    path: str


@dataclass(frozen=True, kw_only=True)
class Select(Statement):
    query: exp.Query


@dataclass(frozen=True, kw_only=True)
class Explain(Statement):
    query: exp.Query


@dataclass(frozen=True, kw_only=True)
class Insert(Statement):
    """INSERT. columns: empty if not specified; source: exp.Values or a query."""

    name: TableName
    columns: tuple[str, ...]
    source: exp.Expr
    as_user: str | None = None

    @functools.cached_property
    def parameters(self) -> tuple[int, ...]:
        """Returns the parameter numbers, which depend on the statements before it in the text."""
        return tuple(int(node.name) for node in self.source.find_all(exp.Placeholder))


@dataclass(frozen=True, kw_only=True)
class Update(Statement):
    """UPDATE. assignments: as written; alias: the table's name in expressions."""

    name: TableName
    alias: str | None
    assignments: tuple[tuple[str, exp.Expr], ...]
    where: exp.Expr | None
    as_user: str | None = None


@dataclass(frozen=True, kw_only=True)
class Delete(Statement):
    name: TableName
    alias: str | None
    where: exp.Expr | None
    as_user: str | None = None
