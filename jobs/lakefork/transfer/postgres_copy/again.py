"""A copy whose snapshot was lost goes on under a new one: parts with unchanged rows are kept."""

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lakefork.errors import InvalidInputError
from lakefork.transfer.postgres_copy.into_postgres import MARKS, read_marks
from lakefork.transfer.postgres_copy.inventory import Inventory
from lakefork.transfer.postgres_copy.plan import Table, copy_out
from lakefork.transfer.postgres_copy.run import CopyRun
from lakefork.transfer.postgres_copy.sessions import Endpoint, source_errors
from lakefork.transfer.postgres_copy.streams import digest_rows

Steps = Sequence[dict[str, Any]]


def changed_parts(run: CopyRun, tables: dict[int, Table], steps: Steps) -> list[dict[str, Any]]:
    """Those that read otherwise under the copy's snapshot of now than when they were copied."""

    def is_changed(step: dict[str, Any]) -> bool:
        with contextlib.closing(run.open_source()) as source, source_errors(run.source.name):
            found = digest_rows(source, copy_out(tables[step["table_oid"]], step["detail"]["condition"]))
            return bool(found.digest != step["digest"])

    with ThreadPoolExecutor(run.params.table_jobs) as pool:
        return [step for step, changed in zip(steps, pool.map(is_changed, steps), strict=True) if changed]


def reset_changed_parts(run: CopyRun, target: Endpoint, inventory: Inventory) -> None:
    """Tables that were split by blocks start again as a whole: nobody knows which rows are a part's."""
    tables = {table.oid: table for table in inventory.tables}
    with contextlib.closing(target.open_target()) as session, source_errors(target.name):
        session.execute(MARKS.encode())
        marks = {mark["step_id"]: mark["digest"] for mark in read_marks(session, run.copy_id)}
        planned = run.context.connection.execute(
            "SELECT step_id, kind, table_oid, detail FROM lakefork.copy_step "
            "WHERE copy_id = %s AND kind IN ('part', 'large_objects')",
            (run.copy_id,),
        ).fetchall()
        copied = [
            {**row, "digest": marks[row["step_id"]]}
            for row in planned
            if row["kind"] == "part" and row["step_id"] in marks
        ]
        changed = changed_parts(run, tables, copied)
        again = {step["step_id"] for step in changed}
        whole = {step["table_oid"] for step in changed if step["detail"]["kind"] != "key"}
        again |= {row["step_id"] for row in planned if row["table_oid"] in whole}
        _require_still_empty(inventory, planned)
        with session.transaction():
            for oid in whole:
                session.execute(f"TRUNCATE ONLY {tables[oid].qualified}".encode())
            for step in changed:
                if step["detail"]["kind"] == "key":
                    name, condition = tables[step["table_oid"]].qualified, step["detail"]["condition"]
                    session.execute(f"DELETE FROM ONLY {name} WHERE {condition}".encode())
            objects = [row for row in planned if row["kind"] == "large_objects" and row["step_id"] in marks]
            for row in objects:
                session.execute("SELECT lo_unlink(o) FROM unnest(%s::oid[]) o", (row["detail"]["oids"],))
            again |= {row["step_id"] for row in objects}
            session.execute(
                "DELETE FROM lakefork_copy.mark WHERE copy_id = %s AND step_id = ANY (%s)", (run.copy_id, sorted(again))
            )
    run.context.connection.execute(
        "UPDATE lakefork.copy_step SET status = 'waiting', worker = NULL "
        "WHERE copy_id = %s AND (step_id = ANY (%s) OR (kind = 'vacuum' AND table_oid IN "
        "(SELECT table_oid FROM lakefork.copy_step WHERE copy_id = %s AND step_id = ANY (%s))))",
        (run.copy_id, sorted(again), run.copy_id, sorted(again)),
    )
    run.context.progress(
        f"{sum(step['step_id'] not in again for step in copied):,} of {len(copied):,} copied part(s) are unchanged"
    )
    run.refresh()


def _require_still_empty(inventory: Inventory, planned: Steps) -> None:
    """A table that had no row has no step; if it has some now, the plan no longer fits."""
    with_steps = {row["table_oid"] for row in planned}
    for table in inventory.tables:
        if inventory.parts[table.oid] and table.oid not in with_steps:
            raise InvalidInputError(f"{table} was empty when the copy began and no longer is: begin a new one")
