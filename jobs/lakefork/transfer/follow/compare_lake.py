"""Compares the tables of a followed copy in the lake with its source, by rows and a digest that no order changes."""

import contextlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
from sqlglot import exp

from lakefork.hot.connections import ArrowConnection
from lakefork.model.tables import Column, TableDefinition, fold
from lakefork.spark.job import JobContext
from lakefork.sql.parse.statements import TableName
from lakefork.sql.read.select import Reader
from lakefork.sql.resources import Resources
from lakefork.sql.session import Role, Session
from lakefork.transfer.follow.state import Follow
from lakefork.transfer.postgres_copy.commands import look_at_source, params_of
from lakefork.transfer.postgres_copy.into_lake import Digest
from lakefork.transfer.postgres_copy.inventory import Inventory
from lakefork.transfer.postgres_copy.lake_run import lake_tables
from lakefork.transfer.postgres_copy.lake_types import LakeTable
from lakefork.transfer.postgres_copy.plan import Table
from lakefork.transfer.postgres_copy.sessions import SOURCE, Endpoint


def compare_with_source(context: JobContext, follow: Follow) -> list[str]:
    """As both are now; a line for each table that differs."""
    params = params_of(follow.copy)
    inventory, source = look_at_source(params)
    with contextlib.closing(Resources(context.installation)) as resources:
        lake = lake_tables(lambda: source.open_source(None), source, inventory, params)
        return list(_differences(resources, source, inventory, lake, follow))


def _differences(
    resources: Resources, source: Endpoint, inventory: Inventory, lake: Sequence[LakeTable], follow: Follow
) -> Iterator[str]:
    session = Session(follow.copy.into_catalog or "", role=Role.ADMIN)
    tables = {table.oid: table for table in inventory.tables}
    for one in lake:
        definition, found = _lake_rows(resources, session, one)
        before = _source_digest(source, one, tables[one.oid], definition)
        after = Digest()
        after.add(found)
        if before.rows != after.rows:
            yield f"{definition} has {before.rows:,} row(s) on the source and {after.rows:,} in the lake"
        elif before != after:
            yield f"{definition} has {before.rows:,} row(s) on both sides, but not the same ones"


def _lake_rows(resources: Resources, session: Session, table: LakeTable) -> tuple[TableDefinition, pa.Table]:
    name = TableName(table.namespace, table.name)
    with resources.readers.transaction() as connection:
        definition = resources.lookup.find(connection, session, name).definition
        columns = [exp.column(column.name, quoted=True) for column in _in_order(table, definition)]
        query = exp.select(*columns).from_(exp.table_(definition.name, db=definition.namespace, quoted=True))
        prepared = Reader(connection, resources.workers, resources.lookup, session).prepare(query)
    return definition, resources.workers.run(prepared.request()).cast(_schema(table, definition))


def _source_digest(source: Endpoint, table: LakeTable, on_source: Table, definition: TableDefinition) -> Digest:
    digest, schema = Digest(), _schema(table, definition)
    reader = ArrowConnection(source.dsn, read_only=True, timeout_seconds=0, max_bytes=0)
    try:
        for setting in SOURCE.split("; "):
            reader.execute(setting.replace("SET ", "SET LOCAL ", 1))
        with reader.stream(table.select(on_source, None)) as batches:
            for batch in batches:
                columns = batch.columns[: len(table.columns)]
                digest.add(pa.table(columns, names=schema.names).cast(schema))
    finally:
        reader.close()
    return digest


def _in_order(table: LakeTable, definition: TableDefinition) -> list[Column]:
    return [definition.by_name[fold(column.name)] for column in table.columns]


def _schema(table: LakeTable, definition: TableDefinition) -> pa.Schema:
    return pa.schema([definition.row_schema.field(column.name) for column in _in_order(table, definition)])
