"""What a backup is of, as it was at one moment: definitions, files, who waits in the hot store, users."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from lakefork.backups.format import HOT_SNAPSHOT, LIST_SCHEMA, table_digest
from lakefork.catalog.backups import Namespace, Table, find_locations, find_namespaces, find_tables, find_users
from lakefork.catalog.catalogs import Catalog, newest_snapshot
from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.definitions import find_definitions
from lakefork.catalog.snapshots import ReadSnapshot, export_snapshot
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.hot.connections import ArrowConnection
from lakefork.hot.ranges import versions_query
from lakefork.hot.tables import HotTable
from lakefork.model.tables import USER_ID, TableRef
from lakefork.read.slices import HotSource
from lakefork.sql.parse.grammar import SqlSyntaxError, parse_rule
from lakefork.transfer.backup.task import KeptRows


@dataclass(frozen=True)
class Subject:
    """files: as lakefork.backup_files lists them; hot: tables with waiting rows; waiting: table, owner and versions."""

    catalog: Catalog
    namespace: str | None
    read: ReadSnapshot
    snapshot_id: int
    namespaces: list[Namespace]
    tables: list[Table]
    files: pa.Table
    hot: list[HotSource]
    waiting: list[tuple[int, str | None, int]]
    users: list[dict[str, Any]]
    locations: list[dict[str, Any]]

    @property
    def with_rows(self) -> list[Table]:
        """STREAM tables have events, which are not kept."""
        return [table for table in self.tables if table.kind != "STREAM"]


@contextmanager
def read_subject(dsn: str, catalog: Catalog, namespace: str | None) -> Iterator[Subject]:
    """For as long as the context lasts, others can read under the same Postgres snapshot."""
    reading = connect(dsn, check_version=False)
    try:
        yield _read(dsn, reading, catalog, namespace)
    finally:
        reading.close()


def _read(dsn: str, reading: Connection, catalog: Catalog, namespace: str | None) -> Subject:
    read = export_snapshot(reading)
    catalog_id = catalog.catalog_id
    namespaces = require_namespace(reading, catalog, namespace)
    tables = find_tables(reading, catalog_id, [one.schema_id for one in namespaces])
    with_rows = [table.table_id for table in tables if table.kind != "STREAM"]
    _refuse_delete_files(reading, catalog_id, with_rows)
    hot = _hot_tables(reading, catalog_id, with_rows)
    users, locations = find_users(reading, catalog_id), find_locations(reading, catalog_id)
    if namespace is not None:
        users, locations = users_with_rules(users, namespaces[0].name), []
    return Subject(
        catalog, namespaces[0].name if namespace is not None else None, read, newest_snapshot(reading), namespaces,
        tables, _files(dsn, read, catalog_id, with_rows), hot, _waiting(reading, hot), users, locations,
    )  # fmt: skip


def require_namespace(connection: Connection, catalog: Catalog, namespace: str | None) -> list[Namespace]:
    """All of a catalog's, or one; raises where it is not there."""
    found = find_namespaces(connection, catalog.catalog_id, namespace)
    if namespace is not None and not found:
        raise NotFoundError(
            f"namespace {namespace} does not exist in catalog {catalog.name}; SHOW NAMESPACES lists them"
        )
    return found


def _refuse_delete_files(reading: Connection, catalog_id: int, tables: Sequence[int]) -> None:
    row = reading.execute(
        "SELECT 1 FROM lakefork.visible_delete_file(%s) WHERE table_id = ANY (%s) LIMIT 1", (catalog_id, list(tables))
    ).fetchone()
    if row:
        raise InvalidInputError("the catalog has delete files, which Lakefork does not write and cannot back up")


def _hot_tables(reading: Connection, catalog_id: int, tables: Sequence[int]) -> list[HotSource]:
    found = find_definitions(reading, [TableRef(catalog_id, table) for table in tables])
    return [
        HotSource(one.definition, tuple(HotTable(definition) for definition in one.hot))
        for one in found.values()
        if one.hot
    ]


def _waiting(reading: Connection, hot: Sequence[HotSource]) -> list[tuple[int, str | None, int]]:
    """Counted, not looked up: a backup relies on no counter."""
    parts = [_count_query(place, table) for place, table in enumerate(hot)]
    if not parts:
        return []
    rows = reading.execute(" UNION ALL ".join(parts))  # type: ignore[call-overload, unused-ignore]
    return [(row["place"], row["owner"], row["versions"]) for row in rows if row["versions"]]


def _count_query(place: int, table: HotSource) -> str:
    owner = USER_ID if table.definition.per_user else "NULL::text"
    versions = versions_query(table.definition, table.hot, None, waiting_only=True)
    return f"SELECT {place} AS place, {owner} AS owner, count(*) AS versions FROM ({versions}) v GROUP BY 2"  # noqa: S608 - names of ours


def _files(dsn: str, read: ReadSnapshot, catalog_id: int, tables: Sequence[int]) -> pa.Table:
    reader = ArrowConnection(dsn, read_only=True, timeout_seconds=0, max_bytes=1 << 40)
    try:
        reader.join_snapshot(read.name)
        listed = ", ".join(map(str, tables))
        query = f"SELECT * FROM lakefork.backup_files({catalog_id}, ARRAY[{listed}]::bigint[])"  # noqa: S608 - numbers
        return reader.query(query)
    finally:
        reader.close()


def users_with_rules(users: Sequence[dict[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """Rules that name tables of a namespace, by user; nothing else of the users."""
    found = [(user, [rule for rule in user["permissions"] if _names(rule, namespace)]) for user in users]
    return [{"user_id": user["user_id"], "permissions": rules} for user, rules in found if rules]


def _names(rule: str, namespace: str) -> bool:
    try:
        return parse_rule(rule).namespace_pattern.lower() == namespace.lower()
    except SqlSyntaxError:
        return False


def definitions_of(subject: Subject) -> dict[str, Any]:
    """All that is not in files, as it is kept."""
    return {
        "namespaces": [
            {
                "name": namespace.name, "tags": namespace.tags, "dates": namespace.dates,
                "tables": [_kept(table) for table in subject.tables if table.schema_id == namespace.schema_id],
            }
            for namespace in subject.namespaces
        ],
        "users": subject.users,
        "locations": subject.locations,
    }  # fmt: skip


def _kept(table: Table) -> dict[str, Any]:
    kept = asdict(table)
    del kept["table_id"], kept["schema_id"]
    return kept


def digest_of(table: Table, batches: pa.Table) -> str:
    """batches: the list of its files."""
    columns = (batches[name].to_pylist() for name in ("user_id", "snapshot", "digest", "record_count"))
    return digest_of_contents(table, [(user or "", *rest) for user, *rest in zip(*columns, strict=True)])


def digest_of_contents(table: Table | Mapping[str, Any], files: Iterable[tuple[str, int, str, int]]) -> str:
    """table: one of a catalog, or what was kept of one; files: owner, snapshot, digest and rows of each."""
    kept = table if isinstance(table, Mapping) else asdict(table)
    definition = [kept[name] for name in ("kind", "columns", "column_tags", "tags", "partitions")]
    return table_digest(definition, [(one["snapshot"], _nameless(one["definition"])) for one in kept["history"]], files)


def _nameless(definition: dict[str, Any] | None) -> dict[str, Any] | None:
    """A namespace can be restored under another name."""
    return definition and {name: value for name, value in definition.items() if name != "namespace"}


def list_of(table: pa.Table, digests: Sequence[str], hot: Sequence[KeptRows]) -> pa.Table:
    """The files of one table: those of the catalog, then those of rows that were hot."""
    cold = pa.table(
        {
            "digest": pa.array(digests, pa.string()), "file_size_bytes": table["file_size_bytes"],
            "record_count": table["record_count"], "footer_size": table["footer_size"], "user_id": table["user_id"],
            "snapshot": table["file_order"], "data_file_id": table["data_file_id"], "statistics": table["statistics"],
        }
    )  # fmt: skip
    kept = [
        {
            "digest": one.digest, "file_size_bytes": one.size, "record_count": one.rows, "user_id": one.user_id,
            "footer_size": one.footer_size, "snapshot": HOT_SNAPSHOT, "data_file_id": None,
            "statistics": one.statistics,
        }
        for one in sorted(hot, key=lambda one: (one.user_id or "", one.digest))
    ]  # fmt: skip
    return pa.concat_tables([cold.cast(LIST_SCHEMA), pa.Table.from_pylist(kept, LIST_SCHEMA)])
