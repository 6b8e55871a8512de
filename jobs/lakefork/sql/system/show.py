"""SHOW and DESCRIBE."""

import json
from collections import Counter
from typing import Any

import pyarrow as pa

from lakefork.cold.schema_files import manifest_path, schema_path
from lakefork.cold.schema_writer import SchemaWriter
from lakefork.errors import PermissionDeniedError
from lakefork.hot.streams import StreamBuffer, count_events, stream_options
from lakefork.hot.tables import HotTable
from lakefork.model.predicates import postgres_text
from lakefork.model.tables import UPDATED, USER_ID, TableDefinition, TableKind
from lakefork.queries import load
from lakefork.read.latest import rows_query
from lakefork.read.requests import ScanRequest, ScanResult
from lakefork.sql.ddl.options import flush_policy_text
from lakefork.sql.parse.statements import (
    DescribeTable,
    Page,
    ShowManifestCache,
    ShowNamespaces,
    ShowTables,
    ShowTableStats,
)
from lakefork.sql.permissions import read_access
from lakefork.sql.read.events import is_stream
from lakefork.sql.read.versions import as_read, find_latest
from lakefork.sql.resources import Resources
from lakefork.sql.results import Rows, from_columns
from lakefork.sql.session import Role, Session
from lakefork.sql.system.relations import (
    NO_LIMIT,
    SystemRead,
    list_cached_manifests,
    list_tables,
    require_namespace,
)
from lakefork.sql.workers.messages import Request

_SQL = load(__package__)
STATISTICS = [USER_ID.lstrip("_"), "live_rows", "hot_versions", "batches", "batch_rows", "bytes"]


class ShowStatements:
    def __init__(self, resources: Resources, schemas: SchemaWriter) -> None:
        self._resources = resources
        self._schemas = schemas

    def namespaces(self, session: Session, statement: ShowNamespaces) -> Rows:
        """Lists namespaces with the number of tables that the session may use."""
        with self._resources.readers.transaction() as connection:
            asking = SystemRead(connection, session, self._resources.lookup.catalog_id(connection, session))
            limit = NO_LIMIT if statement.page.limit is None else statement.page.limit
            sql = _SQL["namespaces"].format(catalog_id=asking.catalog_id, limit=limit, offset=statement.page.offset)
            found = connection.query(sql)
            if session.role >= Role.SERVICE:
                return Rows(statement.text, found)
            usable = Counter(list_tables(asking, None, Page())["namespace"].to_pylist())
        counts = pa.array([usable[name] for name in found["namespace"].to_pylist()], pa.int64())
        return Rows(statement.text, found.set_column(found.column_names.index("tables"), "tables", counts))

    def tables(self, session: Session, statement: ShowTables) -> Rows:
        with self._resources.readers.transaction() as connection:
            asking = SystemRead(connection, session, self._resources.lookup.catalog_id(connection, session))
            namespace = statement.namespace or session.namespace
            found = list_tables(asking, namespace, statement.page).to_pylist()
            if namespace is not None and not found:
                require_namespace(asking, namespace)
        rows = [
            (
                row["namespace"],
                row["table_name"],
                row["table_type"],
                _location(row),
                flush_policy_text({k: v for k, v in row.items() if v is not None}),
            )
            for row in found
        ]
        return from_columns(
            statement.text, ["namespace", "table_name", "table_type", "storage_location", "flush_policy"], rows
        )

    def manifest_cache(self, session: Session, statement: ShowManifestCache) -> Rows:
        resources = self._resources
        with resources.readers.transaction() as connection:
            catalog_id = resources.lookup.catalog_id(connection, session)
            return Rows(
                statement.text,
                list_cached_manifests(SystemRead(connection, session, catalog_id, resources.manifests)),
            )

    def describe(self, session: Session, statement: DescribeTable) -> Rows:
        with self._resources.readers.transaction() as connection:
            found = self._resources.lookup.find(connection, session, statement.name)
            definition = found.definition
            if session.role < Role.SERVICE:
                read_access(connection, session, definition)
            options = stream_options(connection, definition) if is_stream(definition) else definition.options
            versions = connection.query(
                _SQL["versions"].format(catalog_id=definition.catalog_id, table_id=definition.table_id)
            ).to_pylist()
        with self._resources.catalog_of(session) as (writing, catalog):  # a fork has no files until somebody asks
            problem = self._schemas.repair(writing, catalog, definition.namespace, definition.name)
        key = [column.name for column in definition.key]
        rows: list[tuple[Any, ...]] = [
            ("column", c.name, c.type.duckdb, c.nullable, c.default, _role(c.name, key)) for c in definition.columns
        ]
        rows += [
            ("column", c.name, c.type.duckdb, c.nullable, None, "system")
            for c in definition.system_columns
            if c.name != USER_ID
        ]
        if not is_stream(definition):
            rows.append(("column", UPDATED, "TIMESTAMP WITH TIME ZONE", False, None, "system, from _seq"))
        hidden = () if session.role >= Role.SERVICE else ("storage_location", "location_reference")
        rows += [
            ("table", name, None if name in hidden else value, None, None, problem if name == "schema_path" else None)
            for name, value in _properties(definition, options)
        ]
        for row in versions:
            path = schema_path(definition.namespace, definition.name, row["version"])
            rows.append(
                (
                    "version",
                    f"v{row['version']}",
                    path,
                    None,
                    None,
                    f"{row['defined_at'].isoformat()}, snapshot {row['begin_snapshot']}, by {row['author']}",
                )
            )
        return from_columns(statement.text, ["section", "name", "value", "nullable", "default", "detail"], rows)

    def statistics(self, session: Session, statement: ShowTableStats) -> Rows:
        with self._resources.readers.transaction() as connection:
            found = self._resources.lookup.find(connection, session, statement.name)
            definition = found.definition
            access = read_access(connection, session, definition)
            if access.row_filter is not None:
                raise PermissionDeniedError(
                    f"permission denied: statistics of {definition} include rows that you may not see"
                )
            user_id = access.user_id
            if is_stream(definition):
                return _event_counts(statement, count_events(connection, StreamBuffer(definition), user_id))
            user = postgres_text(user_id)
            sql = _SQL["file_totals"].format(
                catalog_id=definition.catalog_id, table_id=definition.table_id, user_id=user
            )
            files = {row["user_id"]: row for row in connection.query(sql).to_pylist()}
            hot: Counter[Any] = Counter()
            for part in found.hot:
                waiting = connection.query(_waiting_versions(part, definition, user_id)).to_pylist()
                hot.update({row["user_id"]: row["versions"] for row in waiting})
            wanted = ScanRequest(found, (), user_id)
            latest = find_latest(connection, self._resources.workers, wanted)
        live = self._count_live(latest)
        nothing: dict[str, Any] = {"batches": 0, "rows": 0, "bytes": 0}
        owners = sorted(files.keys() | hot.keys(), key=str) or ([] if definition.per_user else [None])
        rows = [
            (owner, live.get(owner, 0), hot.get(owner, 0), *(files.get(owner, nothing)[name] for name in nothing))
            for owner in owners
        ]
        return from_columns(statement.text, STATISTICS, rows)

    def _count_live(self, latest: ScanResult) -> dict[Any, int]:
        """Rows that SELECT would give, by owner; no more is read than what tells them apart."""
        query, request = rows_query(latest), latest.request
        if query.sql is None:
            return {}
        owner = USER_ID if request.table.definition.per_user else "NULL"
        read, relations = as_read(query, "latest", request)
        sql = f"SELECT {owner} AS owner, count(*) AS live FROM latest GROUP BY 1"
        counted = self._resources.workers.run(Request(sql, relations, [read]))
        return dict(zip(counted["owner"].to_pylist(), counted["live"].to_pylist(), strict=True))


def _event_counts(statement: ShowTableStats, counts: dict[str, int]) -> Rows:
    """Events are all that a STREAM table has."""
    return from_columns(statement.text, STATISTICS, [(user, n, n, 0, 0, 0) for user, n in sorted(counts.items())])


def _waiting_versions(part: HotTable, definition: TableDefinition, user_id: str | None) -> str:
    """Those that no flush has published; others stay until the next one trims them."""
    owner = USER_ID if definition.per_user else "NULL::text"
    return _SQL["waiting_versions"].format(
        owner=owner, hot=part.qualified, mine=part.of(user_id), catalog_id=definition.catalog_id,
        table_id=definition.table_id, hot_snapshot=part.definition.definition_snapshot,
    )  # fmt: skip


def _role(name: str, key: list[str]) -> str | None:
    return f"primary key {key.index(name) + 1}" if name in key else None


def _location(row: dict[str, Any]) -> str | None:
    return "N/A (ephemeral)" if row["table_type"] == TableKind.STREAM else row["storage_location"]


def _properties(definition: TableDefinition, options: dict[str, Any]) -> list[tuple[str, str | None]]:
    generated = len(definition.key) == 1 and definition.key[0].type.name in ("int64", "uuid")
    found: list[tuple[str, str | None]] = [
        ("table", str(definition)),
        ("table_type", definition.kind),
        ("primary_key", ", ".join(column.name for column in definition.key) or None),
        (
            "generated_key",
            f"{definition.key[0].name} ({'SeqId' if definition.key[0].type.name == 'int64' else 'UUID'})"
            if generated
            else None,
        ),
        ("current_version", str(definition.version)),
        ("schema_path", schema_path(definition.namespace, definition.name)),
        ("manifest_path", manifest_path(definition.namespace)),
    ]
    if not is_stream(definition):
        found += [
            ("storage_location", definition.tags.get("location", definition.path)),
            ("location_reference", definition.tags.get("location_reference")),
            ("flush_policy", flush_policy_text(definition.tags)),
        ]
    return found + [
        (name, value if isinstance(value, str) else json.dumps(value)) for name, value in sorted(options.items())
    ]
