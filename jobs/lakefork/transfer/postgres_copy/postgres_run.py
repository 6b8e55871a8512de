"""A copy into another Postgres, from the driver's side: definitions before and after the rows, and the comparison."""

import contextlib
import time
from typing import Any

from lakefork.errors import ConflictError, InvalidInputError, JobFailedError, SetupError, SnapshotLostError
from lakefork.transfer.postgres_copy import state
from lakefork.transfer.postgres_copy.archive import Archive, dump_definitions
from lakefork.transfer.postgres_copy.compare import compare_databases
from lakefork.transfer.postgres_copy.into_postgres import MARKS, IntoPostgres, read_marks, run_once, set_sequences
from lakefork.transfer.postgres_copy.inventory import Inventory, require_lock_room
from lakefork.transfer.postgres_copy.plan import quote
from lakefork.transfer.postgres_copy.run import CopyRun, require_same_tables, run_steps, take_plan
from lakefork.transfer.postgres_copy.sessions import SQL, Session, find_endpoint, source_errors, target_endpoint
from lakefork.transfer.postgres_copy.steps import built_here, data_steps, foreign_key_script, foreign_key_steps


class PostgresDestination:
    def __init__(self, name: str) -> None:
        self.target, self._identity = find_endpoint(name)
        self.identity: str | None = str(self._identity)

    def check(self, run: CopyRun, *, resumed: bool) -> None:
        name = self.target.name
        if self._identity.is_same_database == run.source_identity.is_same_database:
            raise InvalidInputError(f"source {run.source.name!r} and target {name!r} are the same database")
        if self._identity.is_standby:
            raise InvalidInputError(f"target {name!r} is a standby: it takes no writes")
        self.target = target_endpoint(run.source, run.source_identity, self.target, self._identity)
        if resumed:
            return
        with contextlib.closing(self.target.open_target()) as session, source_errors(name):
            row = session.execute(SQL["user_objects"].replace("%%", "%")).fetchone()
            if row and not run.params.drop_if_exists:
                raise ConflictError(
                    f"target {name!r} is not empty (it has {row['name']}): give an empty one, or drop_if_exists to "
                    "drop what it has of the same names"
                )

    def carry_out(self, run: CopyRun) -> dict[str, Any]:
        copy = run.copy or run.refresh()
        inventory = None if copy.is_done("data") and copy.is_done("foreign_keys") else self._plan(run)
        with contextlib.closing(self.target.open_target()) as session, source_errors(self.target.name):
            if inventory is not None:
                self._copy(run, inventory, session)
            counts = self._counts(run)
            if run.params.compare:
                self._compare(run, counts)
            session.execute("DELETE FROM lakefork_copy.mark WHERE copy_id = %s", (run.copy_id,))
            session.execute("SET synchronous_commit = on")  # what was committed before is on disk with this
            if not session.execute("SELECT FROM lakefork_copy.mark LIMIT 1").fetchone():
                session.execute("DROP SCHEMA lakefork_copy CASCADE")
        return counts

    def _plan(self, run: CopyRun) -> Inventory:
        copy = run.copy or run.refresh()
        inventory = take_plan(run)
        if not copy.is_done("plan"):
            steps = data_steps(inventory, vacuum="vacuum" not in run.params.skip)
            run.with_reconnect(
                "saving the plan",
                lambda: state.save_plan(run.context.connection, run.copy_id, inventory.tables, steps, inventory.notes),
            )
        return inventory

    def _copy(self, run: CopyRun, inventory: Inventory, session: Session) -> None:
        session.execute(MARKS.encode())
        with contextlib.closing(self._dump(run, inventory)) as archive:
            self._define(run, inventory, session, archive)
            self._copy_rows(run, inventory, session)
            self._finish_definitions(run, inventory, session, archive)
        run.begin_phase("foreign keys")
        run_once(session, run.copy_id, "foreign_keys", foreign_key_script(inventory.foreign_keys, inventory.tables))
        self._validate(run, inventory, session)
        run.finish_phase("foreign_keys")

    def _copy_rows(self, run: CopyRun, inventory: Inventory, session: Session) -> None:
        self._restart(run, session)
        run.begin_phase("data")
        if "sequences" not in run.params.skip:
            self._set_sequences(run, inventory, session)
        self._run_steps(run, inventory)
        run.finish_phase("data")

    def _restart(self, run: CopyRun, session: Session) -> None:
        marked = self._marked(session, run.copy_id)
        state.restart_steps(run.context.connection, run.copy_id, run.context.run.job_id, marked)

    def _run_steps(self, run: CopyRun, inventory: Inventory, *, with_snapshot: bool = True) -> None:
        params = run.params
        limits = {"table": params.table_jobs, "index": params.index_jobs}
        if inventory.large_objects and with_snapshot:
            limits["large_object"] = params.large_object_jobs
        tables = {table.oid: table for table in inventory.tables}
        run_steps(run, IntoPostgres(self.target, run.source.name), tables, limits, with_snapshot=with_snapshot)

    def _marked(self, session: Session, copy_id: str) -> list[dict[str, Any]]:
        return [mark for mark in read_marks(session, copy_id) if mark["step_id"] > 0]

    def _dump(self, run: CopyRun, inventory: Inventory) -> Archive:
        """The archive is kept for what comes after the rows."""
        copy = run.copy or run.refresh()
        assert copy.snapshot_name is not None  # noqa: S101 - it is held
        run.begin_phase("definitions")
        content = dump_definitions(run.source.dsn, copy.snapshot_name, inventory.excluded)
        return Archive(content, extensions="extensions" not in run.params.skip)

    def _define(self, run: CopyRun, inventory: Inventory, session: Session, archive: Archive) -> None:
        started = time.monotonic()
        require_lock_room(session, self.target.name, len(inventory.tables))
        self._check_roles(run, session)
        script = archive.script("pre-data", drop_first=run.params.drop_if_exists)
        drops = (
            "".join(f"DROP TABLE IF EXISTS {table.qualified} CASCADE;\n" for table in inventory.tables)
            if run.params.drop_if_exists
            else ""
        )
        with source_errors(self.target.name):
            if run_once(session, run.copy_id, "pre_data", drops + script):
                run.context.progress(f"definitions are made in {time.monotonic() - started:.1f} s")

    def _check_roles(self, run: CopyRun, session: Session) -> None:
        with contextlib.closing(run.open_source()) as source:
            needed = source.execute(SQL["needed_roles"]).fetchall()
            names = [row["name"] for row in needed]
            there = {
                row["rolname"]
                for row in session.execute("SELECT rolname FROM pg_roles WHERE rolname = ANY (%s)", (names,))
            }
            missing = [row for row in needed if row["name"] not in there]
            if missing and not run.params.roles:
                raise SetupError(
                    f"target {self.target.name!r} has no role {missing[0]['name']!r}, which has rights on the "
                    "source: create it, or set roles"
                )
            if not missing:
                return
            members = source.execute(SQL["role_members"], {"names": [row["name"] for row in missing]}).fetchall()
        lines = [f"CREATE ROLE {quote(row['name'])} {_attributes(row)};" for row in missing]
        lines += [
            f"GRANT {quote(row['role'])} TO {quote(row['member'])}"
            f"{' WITH ADMIN OPTION' if row['admin_option'] else ''};"
            for row in members
        ]
        run_once(session, run.copy_id, "roles", "\n".join(lines))
        run.context.progress(
            f"{len(missing)} role(s) are made, without passwords: {', '.join(row['name'] for row in missing)}"
        )

    def _set_sequences(self, run: CopyRun, inventory: Inventory, session: Session) -> None:
        with contextlib.closing(run.open_source()) as source, source_errors(run.source.name):
            set_sequences(source, session, inventory.sequences)

    def _finish_definitions(self, run: CopyRun, inventory: Inventory, session: Session, archive: Archive) -> None:
        run.begin_phase("triggers and comments")
        script = archive.script(
            "post-data", built_here(inventory), [*inventory.unbuilt_entries, *self._own_entries(run, inventory)]
        )
        run_once(session, run.copy_id, "post_data", script)

    def _own_entries(self, run: CopyRun, inventory: Inventory) -> list[str]:
        """How pg_restore lists the publication of a followed copy, which is not the target's business."""
        slot = (run.copy or run.refresh()).slot_name
        namespaces = {table.namespace for table in inventory.tables}
        return [f"PUBLICATION - {slot} ", *(f"PUBLICATION TABLE {one} {slot} " for one in namespaces)] if slot else []

    def _validate(self, run: CopyRun, inventory: Inventory, session: Session) -> None:
        context = run.context
        steps = foreign_key_steps(inventory.foreign_keys, inventory.tables)
        if not steps:
            return
        row = context.connection.execute(
            "SELECT max(step_id) AS last, bool_or(kind = 'foreign_key') AS planned FROM lakefork.copy_step "
            "WHERE copy_id = %s",
            (run.copy_id,),
        ).fetchone()
        if not row or not row["planned"]:
            state.add_steps(context.connection, run.copy_id, steps, ((row or {}).get("last") or 0) + 1)
        self._restart(run, session)
        self._run_steps(run, inventory, with_snapshot=False)

    def _counts(self, run: CopyRun) -> dict[str, Any]:
        row = run.context.connection.execute(SQL["copy_totals"], {"copy_id": run.copy_id}).fetchone()
        found = row or {}
        return {
            "tables": found["tables"], "parts": found["parts"], "rows": found["rows_done"],
            "bytes": found["bytes_done"],
            "steps": found["steps"],
        }  # fmt: skip

    def _compare(self, run: CopyRun, counts: dict[str, Any]) -> None:
        run.begin_phase("comparison")
        open_source = run.open_source
        try:
            with contextlib.closing(open_source()):
                inventory = run.inventory or take_plan(run)
        except SnapshotLostError:
            run.context.progress(
                "the snapshot is lost: the target is not compared, as the source may have changed since"
            )
            return
        differences = compare_databases(open_source, run.source.name, self.target, inventory, run.params.table_jobs)
        state.update_copy(run.context.connection, run.copy_id, differences=differences)
        if differences:
            raise JobFailedError(
                f"source and target differ: {'; '.join(differences[:10])}", {"copy_id": run.copy_id, **counts}
            )
        run.context.progress("source and target are equal")

    def take_again(self, run: CopyRun) -> None:
        from lakefork.transfer.postgres_copy.again import reset_changed_parts

        inventory = take_plan(run)
        require_same_tables(run, inventory)
        reset_changed_parts(run, self.target, inventory)


def _attributes(row: dict[str, Any]) -> str:
    flags = {
        "rolinherit": "INHERIT", "rolcreaterole": "CREATEROLE", "rolcreatedb": "CREATEDB", "rolcanlogin": "LOGIN",
        "rolbypassrls": "BYPASSRLS", "rolreplication": "REPLICATION", "rolsuper": "SUPERUSER",
    }  # fmt: skip
    words = [word if row[name] else f"NO{word}" for name, word in flags.items()]
    return " ".join([*words, f"CONNECTION LIMIT {row['rolconnlimit']}"])
