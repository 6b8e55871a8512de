"""system.* and information_schema.*: the metadata that a session may see, as relations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakefork.errors import NotFoundError, PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.manifests.cache import ManifestCache
from lakefork.model.predicates import postgres_text
from lakefork.queries import load
from lakefork.sql.lookup import Lookup
from lakefork.sql.parse.grammar import Rule
from lakefork.sql.parse.statements import Page, TableName
from lakefork.sql.permissions import rules_of, usable_rules
from lakefork.sql.session import Role, Session

SYSTEM_NAMESPACES = ("system", "information_schema")
_SQL = load(__package__)
NO_LIMIT = 1_000_000_000
NOT_FOR_USERS = ("storage_location", "rows", "bytes")  # paths of files, and totals of all users


@dataclass(frozen=True)
class SystemRead:
    """The context of reading a system table: session and catalog."""

    connection: ArrowConnection
    session: Session
    catalog_id: int
    manifests: ManifestCache | None = None

    def query(self, sql: str) -> pa.Table:
        return self.connection.query(sql)

    @property
    def catalog_name(self) -> str:
        return postgres_text(self.session.catalog)

    @property
    def is_admin(self) -> bool:
        return self.session.role >= Role.ADMIN

    def own(self, *columns: str) -> str:
        """Returns a condition for the user's own rows; admins see all."""
        if self.is_admin:
            return "true"
        user = postgres_text(self.session.own_user())
        return "(" + " OR ".join(f"{column} = {user}" for column in columns) + ")"


def read_system_table(
    connection: ArrowConnection,
    session: Session,
    lookup: Lookup,
    name: TableName,
    manifests: ManifestCache | None = None,
) -> pa.Table:
    full = f"{name.namespace}.{name.table}".lower()
    if full not in _TABLES:
        raise NotFoundError(f"table {full} does not exist; tables: {', '.join(sorted(_TABLES))}")
    return _TABLES[full](SystemRead(connection, session, lookup.catalog_id(connection, session), manifests))


def list_tables(asking: SystemRead, namespace: str | None, page: Page) -> pa.Table:
    """Lists tables that the session may use: role user sees USER tables, and SHARED ones that a rule allows."""
    filtered = asking.session.role < Role.SERVICE
    limit = NO_LIMIT if page.limit is None else page.limit
    sql = _SQL["tables"].format(
        catalog_id=asking.catalog_id,
        namespace=postgres_text(namespace),
        with_columns=str(filtered).lower(),
        **_window(NO_LIMIT, 0) if filtered else _window(limit, page.offset, one_namespace=namespace is not None),
    )
    found = asking.query(sql)
    if filtered:
        rules = rules_of(asking.connection, asking.catalog_id, asking.session.own_user())
        found = found.filter(pa.array([_is_usable(rules, row) for row in found.to_pylist()], pa.bool_()))
        found = _without(found.slice(page.offset, limit), NOT_FOR_USERS)
    return found.drop_columns(["columns"])


def _without(found: pa.Table, names: Sequence[str]) -> pa.Table:
    """Returns rows with NULL in some columns."""
    for name in names:
        place = found.column_names.index(name)
        found = found.set_column(place, name, pa.nulls(found.num_rows, found.schema.field(name).type))
    return found


def _window(limit: int, offset: int, *, one_namespace: bool = False) -> dict[str, int]:
    """Tables of one namespace are skipped in its index; of several, each may give all that the page needs."""
    if one_namespace:
        return {"limit": limit, "offset": 0, "inner_limit": limit, "inner_offset": offset}
    return {"limit": limit, "offset": offset, "inner_limit": limit + offset, "inner_offset": 0}


def _is_usable(rules: list[Rule], row: dict[str, Any]) -> bool:
    usable = usable_rules(rules, row["table_type"], row["namespace"], row["table_name"], row["columns"])
    return usable is None or bool(usable)


def _users(asking: SystemRead) -> pa.Table:
    return asking.query(
        "SELECT user_id, username, role, permissions, created_at, deleted_at, last_login FROM system.users "
        f"WHERE catalog_name = {asking.catalog_name} AND {asking.own('user_id')} ORDER BY user_id"
    )


def _storage_locations(asking: SystemRead) -> pa.Table:
    if not asking.is_admin:
        raise PermissionDeniedError("permission denied: system.storage_locations needs role admin")
    return asking.query(
        "SELECT location_name, location_type, path, credentials_ref, created_at, usage_count, used_by "
        f"FROM system.storage_locations WHERE catalog_name = {asking.catalog_name} ORDER BY location_name"
    )


def _catalogs(asking: SystemRead) -> pa.Table:
    """Lists only the session's catalog."""
    path = "data_path" if asking.is_admin else "NULL::text AS data_path"
    return asking.query(
        f"SELECT catalog_name, {path}, created_at FROM system.catalogs WHERE catalog_id = {asking.catalog_id}"
    )


def _tables(asking: SystemRead) -> pa.Table:
    return list_tables(asking, None, Page())


def _jobs(asking: SystemRead) -> pa.Table:
    """Of the session's catalog; of runs for all catalogs, what they did there. Users see what concerns their rows."""
    user = postgres_text(None if asking.is_admin else asking.session.own_user())
    sql = _SQL["jobs"].format(catalog_id=asking.catalog_id, catalog_name=asking.catalog_name, user=user)
    return asking.query(sql)


def _audit(asking: SystemRead) -> pa.Table:
    return asking.query(
        "SELECT occurred_at, actor, role, subject, action, table_name, affected_rows FROM system.audit "
        f"WHERE catalog_name = {asking.catalog_name} AND {asking.own('actor', 'subject')} ORDER BY occurred_at"
    )


def _waiting(asking: SystemRead) -> pa.Table:
    """Lists waiting versions; services read all rows, so they see all counts."""
    seen = "true" if asking.session.role >= Role.SERVICE else asking.own("user_id")
    return asking.query(
        "SELECT namespace, table_name, user_id, versions, oldest_at FROM system.waiting "
        f"WHERE catalog_name = {asking.catalog_name} AND {seen} ORDER BY namespace, table_name, user_id"
    )


def _deletions(asking: SystemRead) -> pa.Table:
    """Lists deleted files that the session's catalog had last; only for admins, because it shows paths."""
    asking.session.require(Role.ADMIN, "system.deletions")
    return asking.query(
        "SELECT deletion_id, run_id, plan_id, file_id, path, size_bytes, last_catalog, last_table_id, last_snapshot, "
        "reason, decided_at, removed_at, outcome, trash_path, restored_at FROM system.deletions "
        f"WHERE last_catalog = {asking.catalog_name} ORDER BY deletion_id"
    )


def _copies(asking: SystemRead) -> pa.Table:
    """Lists copies into the session's catalog, for admins; role system sees those of the whole installation."""
    asking.session.require(Role.ADMIN, "system.copies")
    seen = "true" if asking.session.role >= Role.SYSTEM else f"into_catalog = {asking.catalog_name}"
    return asking.query(
        "SELECT copy_id, source, target, into_catalog, status, phase, started_at, finished_at, snapshot_at, "
        "snapshot_lsn, snapshot_id, snapshot_held, tables, parts, parts_done, bytes, bytes_done, rows_done, steps, "
        f"steps_done, seconds_left, error FROM system.copies WHERE {seen} ORDER BY started_at DESC"
    )


def _backups(asking: SystemRead) -> pa.Table:
    """Of the session's catalog."""
    asking.session.require(Role.ADMIN, "system.backups")
    return asking.query(
        "SELECT backup_id, namespace, creation_timestamp, file_location, size, table_count, file_count, row_count, "
        "copied_files, copied_bytes, snapshot_id, base, job_id, run_id, started_at, finished_at, removed_at, status, "
        "error_message, verified_at, verified_percent, problem_count FROM system.backups "
        f"WHERE catalog_name = {asking.catalog_name} AND (snapshot_id IS NULL OR snapshot_id >= (SELECT "
        f"c.begin_snapshot FROM lakefork.visible_catalog() c WHERE c.catalog_id = {asking.catalog_id})) "
        "ORDER BY started_at"
    )


def require_namespace(asking: SystemRead, name: str) -> None:
    """Raises unless the namespace exists."""
    found = asking.query(
        f"SELECT 1 FROM lakefork.visible_schema({asking.catalog_id}) "
        f'WHERE lower(schema_name COLLATE "C") = lower({postgres_text(name)}::text COLLATE "C")'
    )
    if not found.num_rows:
        raise NotFoundError(f"namespace {name} does not exist; SHOW NAMESPACES lists namespaces")


def list_cached_manifests(asking: SystemRead) -> pa.Table:
    """Lists cached manifests, for admins because it shows paths; last_accessed is that of this process."""
    asking.session.require(Role.ADMIN, "the manifest cache")
    found = asking.query(_SQL["manifest_cache"].format(catalog_id=asking.catalog_id))
    keys = zip(found["table_id"].to_pylist(), found["owner"].to_pylist(), strict=True)
    accessed = asking.manifests.last_accessed() if asking.manifests is not None else {}
    times = [accessed.get((asking.catalog_id, *key)) for key in keys]
    ttl = asking.manifests.settings.ttl_seconds if asking.manifests is not None else None
    found = found.append_column("last_accessed", pa.array(times, pa.timestamp("us", "UTC")))
    found = found.append_column("ttl", pa.array([ttl] * found.num_rows, pa.int64()))
    return found.select(
        ["namespace", "table", "user_id", "etag", "last_refreshed", "last_accessed", "ttl", "source", "sync_state"]
    )


def _schema_tables(asking: SystemRead) -> pa.Table:
    """Lists tables of the catalog and the system tables."""
    names = ["namespace", "table_name", "table_type", "created_at", "last_modified"]
    mine = list_tables(asking, None, Page()).select(names)
    schemas, tables = zip(*(full.split(".") for full in sorted(_TABLES)), strict=True)
    system = [pa.array(schemas), pa.array(tables), pa.array(["SYSTEM"] * len(tables))]
    system += [pa.nulls(len(tables), mine.schema.field(name).type) for name in names[3:]]
    found = pa.concat_tables([mine, pa.table(dict(zip(names, system, strict=True)))], promote_options="permissive")
    found = found.rename_columns(["table_schema", *names[1:]])
    return found.add_column(0, "table_catalog", pa.array([asking.session.catalog] * found.num_rows))


def _schema_columns(asking: SystemRead) -> pa.Table:
    found = asking.query(_SQL["columns"].format(catalog_id=asking.catalog_id))
    if asking.session.role >= Role.SERVICE:
        return found
    usable = {(row["namespace"], row["table_name"]) for row in list_tables(asking, None, Page()).to_pylist()}
    keep = [
        (row["table_schema"], row["table_name"]) in usable
        for row in found.select(["table_schema", "table_name"]).to_pylist()
    ]
    return found.filter(pa.array(keep, pa.bool_()))


def _schemata(asking: SystemRead) -> pa.Table:
    found = asking.query(_SQL["namespaces"].format(catalog_id=asking.catalog_id, limit=NO_LIMIT, offset=0))
    return pa.table({"catalog_name": [asking.session.catalog] * found.num_rows, "schema_name": found["namespace"]})


def _live_queries(asking: SystemRead) -> pa.Table:
    return asking.query(
        "SELECT id::text AS id, user_id, query, created_at, bandwidth, messages, node, namespace, table_name, "
        f"subscription_id FROM lakefork.live_queries({asking.catalog_id}) WHERE {asking.own('user_id')} "
        "ORDER BY created_at, id"
    )


_TABLES: dict[str, Callable[[SystemRead], pa.Table]] = {
    "system.users": _users,
    "system.storage_locations": _storage_locations,
    "system.catalogs": _catalogs,
    "system.tables": _tables,
    "system.jobs": _jobs,
    "system.audit": _audit,
    "system.waiting": _waiting,
    "system.deletions": _deletions,
    "system.copies": _copies,
    "system.backups": _backups,
    "system.live_queries": _live_queries,
    "system.manifest_cache": list_cached_manifests,
    "information_schema.tables": _schema_tables,
    "information_schema.columns": _schema_columns,
    "information_schema.schemata": _schemata,
}
