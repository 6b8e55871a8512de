"""What `lakefork copy` does without Spark: look at copies, compare, list parts, abandon."""

import contextlib
from typing import Any

from lakefork.catalog.connection import connect
from lakefork.catalog.named_connections import connect_to
from lakefork.errors import InvalidInputError, LeaseHeldError, SnapshotLostError
from lakefork.model.params import PostgresCopyParams
from lakefork.storage import StorageOptions
from lakefork.transfer.postgres_copy import state
from lakefork.transfer.postgres_copy.compare import compare_databases
from lakefork.transfer.postgres_copy.holder import drop_slot
from lakefork.transfer.postgres_copy.inventory import Inventory, split_tables, take_inventory
from lakefork.transfer.postgres_copy.sessions import Endpoint, find_endpoint, source_errors
from lakefork.transfer.postgres_copy.staged import remove_staged_files


def params_of(copy: state.Copy, **changes: Any) -> PostgresCopyParams:
    """What a copy was begun with."""
    given = {"source": copy.source, "target": copy.target, "into": copy.into_catalog, **copy.setup, **changes}
    return PostgresCopyParams.model_validate({name: value for name, value in given.items() if value is not None})


def look_at_source(params: PostgresCopyParams, snapshot: str | None = None) -> tuple[Inventory, Endpoint]:
    """Returns what would be copied, and in which parts."""
    source, identity = find_endpoint(params.source)
    with contextlib.closing(source.open_source(snapshot)) as session, source_errors(source.name):
        inventory = take_inventory(session, params, identity.version)
        split_tables(session, inventory, params.split_bytes)
    return inventory, source


def list_parts(params: PostgresCopyParams) -> list[dict[str, Any]]:
    """A row for each part of each table, largest tables first."""
    inventory, _ = look_at_source(params)
    return [
        {
            "table": str(table),
            "size_bytes": table.size_bytes,
            "part": part.number + 1,
            "parts": len(inventory.parts[table.oid]),
            "split_by": {"key": table.split_key, "ctid": "blocks", "whole": None}[part.kind],
            "condition": part.condition,
        }
        for table in sorted(inventory.tables, key=lambda one: -one.size_bytes)
        for part in inventory.parts[table.oid]
    ]


def compare_now(dsn: str, copy_id: str, *, of_now: bool = False) -> list[str]:
    """Under the copy's snapshot while that is held, else (or with of_now) as the source is now."""
    with connect(dsn) as connection:
        copy = state.find_copy(connection, copy_id)
    if copy.target is None:
        raise InvalidInputError(f"copy {copy_id} went into catalog {copy.into_catalog!r}: its run compared it")
    try:
        return _compare(params_of(copy), copy.target, None if of_now else copy.snapshot_name)
    except SnapshotLostError:  # before, or by now: a copy that is complete lets its snapshot go
        return _compare(params_of(copy), copy.target, None)


def _compare(params: PostgresCopyParams, target_name: str, snapshot: str | None) -> list[str]:
    inventory, source = look_at_source(params, snapshot)
    target, _ = find_endpoint(target_name)
    target = Endpoint(target.name, target.dsn, source.encoding)
    return compare_databases(lambda: source.open_source(snapshot), source.name, target, inventory, params.table_jobs)


def abandon(dsn: str, copy_id: str, storage: StorageOptions) -> int:
    """Gives a copy up: lets its snapshot go, and returns how many staged files were removed. The target stays."""
    with connect(dsn) as connection:
        copy = state.find_copy(connection, copy_id)
        if copy.status == "completed":
            raise InvalidInputError(f"copy {copy_id} is completed: there is nothing to abandon")
        row = connection.execute(
            "UPDATE lakefork.copy c SET status = 'abandoned', finished_at = clock_timestamp() "
            "WHERE copy_id = %s AND NOT EXISTS (SELECT FROM lakefork.lease l "
            "WHERE l.name = 'copy/' || c.copy_id AND l.expires_at >= clock_timestamp()) RETURNING 1",
            (copy_id,),
        ).fetchone()
        if row is None:
            raise LeaseHeldError(f"copy {copy_id} is being worked on: stop its run first")
        if copy.slot_name is not None:
            with connect_to(copy.source, autocommit=True) as session, source_errors(copy.source):
                drop_slot(session, copy.slot_name)
        return remove_staged_files(connection, copy_id, storage)


def begun_with(dsn: str, copy_id: str) -> dict[str, Any]:
    """The parameters of a copy that are kept."""
    with connect(dsn) as connection:
        return params_of(state.find_copy(connection, copy_id)).model_dump(mode="json", exclude_defaults=True)


def statuses(dsn: str, copy_id: str | None) -> list[dict[str, Any]]:
    with connect(dsn) as connection:
        if copy_id is not None:
            state.find_copy(connection, copy_id)
        return [row for row in state.list_copies(connection) if copy_id in (None, row["copy_id"])]


def status_line(row: dict[str, Any]) -> str:
    """A copy in a line, and what is wrong with it in another."""
    parts = f"{row['parts_done']:,} of {row['parts']:,} part(s)"
    done = f"{parts}, {row['bytes_done'] / 1e6:,.0f} of {row['bytes'] / 1e6:,.0f} MB"
    left = f", about {row['seconds_left']:,.0f} s left" if row["seconds_left"] and row["status"] == "running" else ""
    held = ", snapshot held" if row["snapshot_held"] else ""
    running = f", {row['phase']}" if row["status"] == "running" else ""
    way = f"{row['source']} -> {row['target'] or row['into_catalog']}"
    line = f"{row['copy_id']}  {way}  {row['status']}{running}: {done}{left}{held}"
    return f"{line}\n  {row['error']}" if row["error"] else line


def part_line(row: dict[str, Any]) -> str:
    split = f", split by {row['split_by']}: {row['condition']}" if row["condition"] else ""
    return f"{row['table']}  {row['size_bytes'] / 1e6:,.1f} MB  part {row['part']} of {row['parts']}{split}"
