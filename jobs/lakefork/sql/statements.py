"""What a text of SQL asks for, as frozen objects: the grammar makes them, the engine carries them out."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sqlglot import exp

OptionValue = str | int | float | bool


class TableKind(StrEnum):
    USER = "USER"
    SHARED = "SHARED"
    STREAM = "STREAM"


@dataclass(frozen=True)
class TableName:
    """namespace is None where the text names none; the session's then holds."""

    namespace: str | None
    table: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}" if self.namespace else self.table


@dataclass(frozen=True, kw_only=True)
class Statement:
    """text is the statement as it was written, without the semicolon."""

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
    """Part of a listing."""

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
    """default is an expression as it was parsed; None: the column has none."""

    name: str
    type: exp.DataType
    nullable: bool = True
    default: exp.Expr | None = None


@dataclass(frozen=True, kw_only=True)
class FlushPolicy:
    """rows and interval as written, not yet checked."""

    rows: int | None = None
    interval: str | None = None


@dataclass(frozen=True, kw_only=True)
class CreateTable(Statement):
    """kind is None where the text says just CREATE TABLE; primary_key in the order of the key."""

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


@dataclass(frozen=True, kw_only=True)
class ModifyColumn:
    """The column as it is to be; nullable and default are None where the text is silent."""

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
class Select(Statement):
    query: exp.Query


@dataclass(frozen=True, kw_only=True)
class Explain(Statement):
    query: exp.Query


@dataclass(frozen=True, kw_only=True)
class Insert(Statement):
    """columns is empty where the text names none; source is exp.Values or a query."""

    name: TableName
    columns: tuple[str, ...]
    source: exp.Expr
    as_user: str | None = None

    @functools.cached_property
    def parameters(self) -> tuple[int, ...]:
        """The numbers of its parameters: the same text comes with others where it follows another statement."""
        return tuple(int(node.name) for node in self.source.find_all(exp.Placeholder))


@dataclass(frozen=True, kw_only=True)
class Update(Statement):
    """assignments in the order written; alias is the name by which expressions may call the table."""

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
