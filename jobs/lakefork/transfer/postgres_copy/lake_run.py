"""A copy into a catalog, from the driver's side: definitions, audit, and one commit for all tables."""

import contextlib
import getpass
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psycopg.types.json import Jsonb

from lakefork.catalog.catalogs import Catalog, find_catalog
from lakefork.catalog.commits import Changes
from lakefork.catalog.roots import installation_id
from lakefork.cold.batch_files import Destination
from lakefork.cold.layout import batch_directory, below_table
from lakefork.cold.statistics import BatchFacts
from lakefork.database_errors import domain_errors
from lakefork.errors import ConflictError, InvalidInputError, JobFailedError
from lakefork.model.params import PostgresCopyParams
from lakefork.model.tables import TableDefinition, TableKind, fold
from lakefork.sql.ddl.table_changes import add_table
from lakefork.storage.paths import path_part
from lakefork.transfer.follow.lake_keys import require_lake_keys
from lakefork.transfer.postgres_copy import state
from lakefork.transfer.postgres_copy.into_lake import IntoLake
from lakefork.transfer.postgres_copy.inventory import Inventory
from lakefork.transfer.postgres_copy.lake_defaults import with_defaults
from lakefork.transfer.postgres_copy.lake_types import LakeTable, lake_table
from lakefork.transfer.postgres_copy.plan import MB, Part, part_steps
from lakefork.transfer.postgres_copy.run import CopyRun, require_same_tables, run_steps, take_plan
from lakefork.transfer.postgres_copy.sessions import SQL, Endpoint, Session, source_errors
from lakefork.transfer.postgres_copy.staged import remove_staged_files, staged_job

RESERVED_NAMESPACES = {"system", "information_schema"}
FILE_BYTES = 256 * MB


class Verdict(Protocol):
    success: bool
    summary: str


class Audit(Protocol):
    """Looks at what was staged; upkeep has it, and the job brings both together."""

    def judge(self, tables: Sequence[Any], files: Sequence[Sequence[Any]], lost: Sequence[Any]) -> Sequence[Any]: ...


@dataclass(frozen=True)
class TableToPublish:
    definition: TableDefinition


@dataclass(frozen=True)
class StagedFile:
    path: str
    user_id: str | None
    facts: BatchFacts
    metrics: dict[str, int]


@dataclass(frozen=True)
class Discrepancy:
    """versions: rows of the source that were not read; rows: that were read, and are in no file (or in two)."""

    versions: int
    rows: int


@dataclass(frozen=True)
class Namespace:
    schema_id: int | None  # None: the copy makes it
    name: str
    path: str


class LakeDestination:
    def __init__(self, catalog: str, audit: Audit) -> None:
        self._catalog_name, self._audit = catalog, audit
        self.identity: str | None = None

    def check(self, run: CopyRun, *, resumed: bool) -> None:  # noqa: ARG002
        self._catalog(run)

    def _catalog(self, run: CopyRun) -> Catalog:
        return find_catalog(run.context.connection, self._catalog_name)

    def take_again(self, run: CopyRun) -> None:
        """Rows that were read under different snapshots do not make one moment: all of them are read again."""
        inventory = take_plan(run)
        require_same_tables(run, inventory)
        run.context.connection.execute(
            "UPDATE lakefork.copy_step SET status = 'waiting', result = NULL, worker = NULL WHERE copy_id = %s",
            (run.copy_id,),
        )
        run.refresh()

    def carry_out(self, run: CopyRun) -> dict[str, Any]:
        copy = run.copy or run.refresh()
        if copy.snapshot_id is not None:  # published, and cut off before that was said
            return self._counts(run)
        catalog = self._catalog(run)
        inventory = take_plan(run)
        lake = self._lake_tables(run, inventory)
        namespaces = self._namespaces(run, catalog, lake)
        definitions = {table.oid: _definition(catalog, namespaces[fold(table.namespace)], table) for table in lake}
        if not copy.is_done("plan"):
            steps = [
                step for table in inventory.tables for step in part_steps(table, _parts(inventory, table.oid, lake))
            ]
            run.with_reconnect(
                "saving the plan",
                lambda: state.save_plan(run.context.connection, run.copy_id, inventory.tables, steps, inventory.notes),
            )
        self._copy_rows(run, inventory, lake, definitions)
        self._publish(run, catalog, lake, definitions, namespaces)
        return self._counts(run)

    def _lake_tables(self, run: CopyRun, inventory: Inventory) -> list[LakeTable]:
        found = lake_tables(run.open_source, run.source, inventory, run.params)
        if run.params.follow:
            require_lake_keys(found)
        return found

    def _namespaces(self, run: CopyRun, catalog: Catalog, lake: Sequence[LakeTable]) -> dict[str, Namespace]:
        """By folded name; a table that is there already is refused."""
        connection = run.context.connection
        wanted = {fold(table.namespace): table.namespace for table in lake}
        if taken := wanted.keys() & RESERVED_NAMESPACES:
            raise InvalidInputError(
                f"the name {sorted(taken)[0]} is reserved for a namespace of Lakefork: exclude that schema"
            )
        rows = connection.execute(
            "SELECT schema_id, schema_name, "
            "lakefork.join_path(lakefork.data_path(%(catalog)s), path, path_is_relative) AS path "
            "FROM lakefork.visible_schema(%(catalog)s)", {"catalog": catalog.catalog_id},
        )  # fmt: skip
        found = {fold(row["schema_name"]): Namespace(row["schema_id"], row["schema_name"], row["path"]) for row in rows}
        there = connection.execute(
            "SELECT schema_id, table_name FROM lakefork.visible_table(%s)", (catalog.catalog_id,)
        ).fetchall()
        names = {(row["schema_id"], fold(row["table_name"])) for row in there}
        for table in lake:
            known = found.get(fold(table.namespace))
            if known and (known.schema_id, fold(table.name)) in names:
                raise ConflictError(f"table {table.namespace}.{table.name} already exists in catalog {catalog.name}")
        made = {key: Namespace(None, name, f"{catalog.data_path}/{path_part(name)}") for key, name in wanted.items()}
        return {**made, **{key: one for key, one in found.items() if key in wanted}}

    def _copy_rows(
        self, run: CopyRun, inventory: Inventory, lake: Sequence[LakeTable], definitions: Mapping[int, TableDefinition]
    ) -> None:
        context, settings = run.context, run.context.settings
        connection = context.connection
        state.restart_steps(connection, run.copy_id, context.run.job_id, None)
        run.begin_phase("data")
        destination = Destination(
            staged_job(run.copy_id),
            installation_id(connection),
            context.storage,
            FILE_BYTES,
            settings.flush.bloom_filter_fpp,
        )
        executor = IntoLake(
            run.source,
            destination,
            settings.node_id,
            {table.oid: table for table in lake},
            definitions,
            run.params.compare,
        )
        run_steps(run, executor, {table.oid: table for table in inventory.tables}, {"table": run.params.table_jobs})
        run.finish_phase("data")

    def _staged(self, run: CopyRun) -> dict[int, list[tuple[int, list[StagedFile]]]]:
        """By table: of each part how many rows were read, and its files."""
        rows = run.context.connection.execute(
            "SELECT table_oid, result FROM lakefork.copy_step WHERE copy_id = %s AND kind = 'part' ORDER BY step_id",
            (run.copy_id,),
        )
        found = defaultdict(list)
        for row in rows:
            files = [
                StagedFile(
                    one["path"], one["user_id"],
                    BatchFacts(**{**one["facts"], "statistics": json.dumps(one["facts"]["statistics"])}),
                    one["metrics"],
                )
                for one in row["result"]["files"]
            ]  # fmt: skip
            found[row["table_oid"]].append((row["result"]["read"], files))
        return dict(found)

    def _publish(
        self,
        run: CopyRun,
        catalog: Catalog,
        lake: Sequence[LakeTable],
        definitions: Mapping[int, TableDefinition],
        namespaces: Mapping[str, Namespace],
    ) -> None:
        context = run.context
        staged = self._staged(run)
        files = {table.oid: [file for _, some in staged.get(table.oid, []) for file in some] for table in lake}
        removed = remove_staged_files(
            context.connection, run.copy_id, context.storage, {file.path for some in files.values() for file in some}
        )
        if removed:
            context.progress(f"{removed} staged file(s) of steps that were done again were removed")
        run.begin_phase("audit")
        self._judge(run, lake, definitions, staged, files)
        run.begin_phase("commit")
        changes, directories = _changes(lake, definitions, namespaces, files)
        paths = [file.path for some in files.values() for file in some]
        snapshot = context.commit_idempotently(lambda: self._commit(run, catalog, changes, directories, paths))
        state.update_copy(context.connection, run.copy_id, differences=[] if run.params.compare else None)
        context.progress(
            f"{len(lake):,} table(s), {len(paths):,} file(s) published in {catalog.name}, snapshot {snapshot}"
        )

    def _judge(
        self,
        run: CopyRun,
        lake: Sequence[LakeTable],
        definitions: Mapping[int, TableDefinition],
        staged: Mapping[int, Sequence[tuple[int, Sequence[StagedFile]]]],
        files: Mapping[int, Sequence[StagedFile]],
    ) -> None:
        tables = [TableToPublish(definitions[table.oid]) for table in lake]
        read = [sum(rows for rows, _ in staged.get(table.oid, [])) for table in lake]
        written = [sum(file.facts.record_count for file in files[table.oid]) for table in lake]
        lost = [Discrepancy(0, abs(before - after)) for before, after in zip(read, written, strict=True)]
        verdicts = self._audit.judge(tables, [files[table.oid] for table in lake], lost)
        failed = [
            f"{table.namespace}.{table.name}: {verdict.summary}"
            for table, verdict in zip(lake, verdicts, strict=True)
            if not verdict.success
        ]
        if failed:
            raise JobFailedError(
                f"nothing was published, as the audit failed for {len(failed)} table(s): {'; '.join(failed[:5])}",
                {"copy_id": run.copy_id, "tables": len(lake)},
            )

    def _commit(
        self,
        run: CopyRun,
        catalog: Catalog,
        changes: Changes,
        directories: Sequence[dict[str, Any]],
        paths: Sequence[str],
    ) -> int:
        copy = run.copy or run.refresh()
        with domain_errors():
            row = run.context.connection.execute(
                SQL["publish_copy"],
                {
                    "copy_id": run.copy_id, "job_id": run.context.run.job_id, "staged_job": staged_job(run.copy_id),
                    "catalog_id": catalog.catalog_id, "changes": Jsonb(changes.as_json()), "paths": list(paths),
                    "directories": Jsonb(list(directories)), "author": getpass.getuser(),
                    "message": f"copy of {copy.source} at {copy.snapshot_lsn}", "extra": run.context.run.run_id,
                },
            ).fetchone()  # fmt: skip
        assert row is not None  # noqa: S101 - the function returns one row or raises
        return int(row["snapshot_id"])

    def _counts(self, run: CopyRun) -> dict[str, Any]:
        row = run.context.connection.execute(SQL["lake_counts"], {"copy_id": run.copy_id}).fetchone()
        return dict(row or {})


def lake_tables(
    open_source: Callable[[], Session], source: Endpoint, inventory: Inventory, params: PostgresCopyParams
) -> list[LakeTable]:
    """What the tables become; raises for columns without a type. What is left out is noted in the inventory."""
    owners = params.owner_columns or {}
    names = {str(table) for table in inventory.tables}
    if unknown := sorted(owners.keys() - names):
        raise InvalidInputError(f"owner_columns: there is no table {unknown[0]!r} among those that are copied")
    oids = sorted({column.type_oid for table in inventory.tables for column in table.columns})
    with contextlib.closing(open_source()) as session, source_errors(source.name):
        types = {row["oid"]: row for row in session.execute(SQL["types"], {"oids": oids})}
        as_text = params.unsupported_types == "text"
        found, refused = [], []
        for table in inventory.tables:
            lake, without_type = lake_table(table, types, owner=owners.get(str(table)), as_text=as_text)
            found.append(lake)
            refused += without_type
        if refused:
            more = f" and {len(refused) - 10} more" if len(refused) > 10 else ""
            raise InvalidInputError(
                f"the lake has no type for {', '.join(refused[:10])}{more}: set unsupported_types to text, or "
                "exclude them"
            )
        found, notes = with_defaults(session, found)
    inventory.notes += notes
    return found


def _parts(inventory: Inventory, oid: int, lake: Sequence[LakeTable]) -> list[Part]:
    """Rows of a user stay together: tables of users are read as a whole, in the order of their owners."""
    parts = inventory.parts[oid]
    per_user = {table.oid for table in lake if table.per_user}
    return [Part(0, None, "whole")] if parts and oid in per_user else parts


def _definition(catalog: Catalog, namespace: Namespace, table: LakeTable) -> TableDefinition:
    """As the commit will make it. It has no id yet: files are staged under one that no table has."""
    return TableDefinition(
        catalog.catalog_id, catalog.name, -table.oid, namespace.schema_id or 0, namespace.name, table.name, 0, 1, 0, 0,
        f"{namespace.path}/{path_part(table.name)}", table.columns, _tags(table),
    )  # fmt: skip


def _tags(table: LakeTable) -> dict[str, str]:
    by_name = {column.name: column.column_id for column in table.columns}
    kind = TableKind.USER if table.per_user else TableKind.SHARED
    return {
        "kind": kind.value,
        "primary_key": json.dumps([by_name[name] for name in table.key]),
        "option.deleted_retention": json.dumps("7d"),
    }


def _changes(
    lake: Sequence[LakeTable],
    definitions: Mapping[int, TableDefinition],
    namespaces: Mapping[str, Namespace],
    files: Mapping[int, Sequence[StagedFile]],
) -> tuple[Changes, list[dict[str, Any]]]:
    """All that the commit makes, and the directories that need a manifest."""
    changes = Changes()
    ids: dict[str, int] = {}
    for key, namespace in namespaces.items():
        if namespace.schema_id is not None:
            ids[key] = namespace.schema_id
            continue
        ids[key] = changes.new_id()
        changes.add(
            "ducklake_schema",
            schema_id=ids[key],
            schema_name=namespace.name,
            path=path_part(namespace.name),
            path_is_relative=True,
        )
    directories: dict[tuple[int, str], dict[str, Any]] = {}
    for table in lake:
        definition = definitions[table.oid]
        kind = TableKind.USER if table.per_user else TableKind.SHARED
        table_id = add_table(changes, ids[fold(table.namespace)], table.name, kind, table.columns, definition.tags)
        for file in files[table.oid]:
            changes.add_batch(table_id, below_table(definition, file.path), file.facts, user_id=file.user_id)
            directories[table_id, file.user_id or ""] = {
                "table_id": table_id, "user_id": file.user_id or "",
                "directory": batch_directory(definition, file.user_id),
            }  # fmt: skip
    return changes, list(directories.values())
