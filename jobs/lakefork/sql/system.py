"""system.* and information_schema.*: what a session may know of its catalog, as relations to select from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakefork.errors import NotFoundError, PermissionDeniedError
from lakefork.hot.connections import ArrowConnection
from lakefork.predicates import postgres_text
from lakefork.queries import load
from lakefork.sql.grammar import Rule
from lakefork.sql.lookup import Lookup
from lakefork.sql.manifest_cache import ManifestCache
from lakefork.sql.permissions import rules_of, usable_rules
from lakefork.sql.session import Role, Session
from lakefork.sql.statements import Page, TableName

SYSTEM_NAMESPACES = ("system", "information_schema")
_SQL = load(__package__)
NO_LIMIT = 1_000_000_000
NOT_FOR_USERS = ("storage_location", "rows", "bytes")  # where files lie, and how much all users have together


@dataclass(frozen=True)
class Asking:
    """Who reads a system table, and of which catalog."""

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
        """A condition that leaves what concerns the user; admins see all."""
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
        raise NotFoundError(f"there is no table {full}; there are {', '.join(sorted(_TABLES))}")
    return _TABLES[full](Asking(connection, session, lookup.catalog_id(connection, session), manifests))


def list_tables(asking: Asking, namespace: str | None, page: Page) -> pa.Table:
    """Tables that the session may use: role user sees USER tables, and SHARED ones that a rule allows."""
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
    """The same rows with NULL in some columns."""
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


def _users(asking: Asking) -> pa.Table:
    return asking.query(
        "SELECT user_id, username, role, permissions, created_at, deleted_at FROM system.users "
        f"WHERE catalog_name = {asking.catalog_name} AND {asking.own('user_id')} ORDER BY user_id"
    )


def _storage_locations(asking: Asking) -> pa.Table:
    if not asking.is_admin:
        raise PermissionDeniedError("permission denied: system.storage_locations needs role admin")
    return asking.query(
        "SELECT location_name, location_type, path, credentials_ref, created_at, usage_count, used_by "
        f"FROM system.storage_locations WHERE catalog_name = {asking.catalog_name} ORDER BY location_name"
    )


def _catalogs(asking: Asking) -> pa.Table:
    """The session's own: others are none of its business."""
    path = "data_path" if asking.is_admin else "NULL::text AS data_path"
    return asking.query(
        f"SELECT catalog_name, {path}, created_at FROM system.catalogs WHERE catalog_id = {asking.catalog_id}"
    )


def _tables(asking: Asking) -> pa.Table:
    return list_tables(asking, None, Page())


def _jobs(asking: Asking) -> pa.Table:
    """Of the session's catalog; admins also see runs for all catalogs, but not what these say of others."""
    mine = f"coalesce(catalog_name = {asking.catalog_name}, false)"
    if not asking.is_admin:
        user = postgres_text(asking.session.own_user())
        return asking.query(_SQL["jobs"].format(mine=mine, seen=f"{mine} AND user_id = {user}"))
    return asking.query(_SQL["jobs"].format(mine=mine, seen=f"({mine} OR catalog_name IS NULL)"))


def _audit(asking: Asking) -> pa.Table:
    return asking.query(
        "SELECT occurred_at, actor, role, subject, action, table_name, affected_rows FROM system.audit "
        f"WHERE catalog_name = {asking.catalog_name} AND {asking.own('actor', 'subject')} ORDER BY occurred_at"
    )


def list_cached_manifests(asking: Asking) -> pa.Table:
    """Where files lie is for admins; last_accessed is what this process knows."""
    asking.session.require(Role.ADMIN, "the manifest cache")
    found = asking.query(_SQL["manifest_cache"].format(catalog_id=asking.catalog_id))
    keys = zip(found["table_id"].to_pylist(), found["owner"].to_pylist(), strict=True)
    accessed = asking.manifests.last_accessed() if asking.manifests else {}
    times = [accessed.get((asking.catalog_id, *key)) for key in keys]
    ttl = asking.manifests.settings.ttl_seconds if asking.manifests else None
    found = found.append_column("last_accessed", pa.array(times, pa.timestamp("us", "UTC")))
    found = found.append_column("ttl", pa.array([ttl] * found.num_rows, pa.int64()))
    return found.select(
        ["namespace", "table", "user_id", "etag", "last_refreshed", "last_accessed", "ttl", "source", "sync_state"]
    )


def _schema_tables(asking: Asking) -> pa.Table:
    """Tables of the catalog, and these."""
    mine = list_tables(asking, None, Page()).select(["namespace", "table_name", "table_type"]).to_pylist()
    rows = [(row["namespace"], row["table_name"], row["table_type"]) for row in mine]
    for full in sorted(_TABLES):
        schema, _, name = full.partition(".")
        rows.append((schema, name, "SYSTEM"))
    columns = list(zip(*rows, strict=True))
    return pa.table(
        {
            "table_catalog": [asking.session.catalog] * len(rows),
            "table_schema": columns[0],
            "table_name": columns[1],
            "table_type": columns[2],
        }
    )


def _schema_columns(asking: Asking) -> pa.Table:
    found = asking.query(_SQL["columns"].format(catalog_id=asking.catalog_id))
    if asking.session.role >= Role.SERVICE:
        return found
    usable = {(row["namespace"], row["table_name"]) for row in list_tables(asking, None, Page()).to_pylist()}
    keep = [
        (row["table_schema"], row["table_name"]) in usable
        for row in found.select(["table_schema", "table_name"]).to_pylist()
    ]
    return found.filter(pa.array(keep, pa.bool_()))


def _schemata(asking: Asking) -> pa.Table:
    found = asking.query(_SQL["namespaces"].format(catalog_id=asking.catalog_id, limit=NO_LIMIT, offset=0))
    return pa.table({"catalog_name": [asking.session.catalog] * found.num_rows, "schema_name": found["namespace"]})


_TABLES: dict[str, Callable[[Asking], pa.Table]] = {
    "system.users": _users,
    "system.storage_locations": _storage_locations,
    "system.catalogs": _catalogs,
    "system.tables": _tables,
    "system.jobs": _jobs,
    "system.audit": _audit,
    "system.manifest_cache": list_cached_manifests,
    "information_schema.tables": _schema_tables,
    "information_schema.columns": _schema_columns,
    "information_schema.schemata": _schemata,
}
