"""Brings the schema of an existing catalog to that of this Lakefork, in one transaction or not at all."""

import re
from dataclasses import dataclass

import psycopg

from lakefork import __version__
from lakefork.catalog.connection import (
    Connection,
    applied_upgrades,
    find_installed,
    reject_newer,
    require_format,
)
from lakefork.catalog.leases import HeldLease, find_held
from lakefork.catalog.schema import link_airflow, record_schema
from lakefork.catalog.scripts import (
    CODE_FILE,
    DROP_CODE_FILE,
    GRANT_AGAIN_FILE,
    UpgradeScript,
    read_script,
    upgrade_scripts,
)
from lakefork.errors import CatalogVersionError, LeaseHeldError, SetupError

LOCK_TIMEOUT = "10s"  # while it waits, others wait behind it
# Replaces what drop_code.sql could not drop. Not used by `init`, where it would hide duplicate definitions.
_CREATE = re.compile(r"\bCREATE (?=(FUNCTION|PROCEDURE|VIEW|TRIGGER)\b)")


@dataclass(frozen=True)
class UpgradePlan:
    """What an upgrade does to a database; nothing if it has the schema of this Lakefork."""

    lakefork: str | None  # that the database's schema belongs to
    scripts: list[UpgradeScript]
    is_needed: bool
    leases: list[HeldLease]  # of jobs at work, in the way


def plan_upgrade(connection: Connection) -> UpgradePlan:
    """Returns the steps of an upgrade; raises if there is no path from the installed version to this one."""
    installed = find_installed(connection)
    if installed is None:
        raise CatalogVersionError("this database holds no Lakefork catalog: run `lakefork init` first")
    require_format(installed)
    reject_newer(connection, installed)
    applied = applied_upgrades(connection)
    scripts = [script for script in upgrade_scripts() if script.name not in applied]
    return UpgradePlan(installed.lakefork, scripts, not installed.is_current, find_held(connection))


def upgrade_catalog(connection: Connection) -> tuple[UpgradePlan, list[str]]:
    """Upgrades the schema; returns what was done, and what the operator has to do."""
    try:
        with connection.transaction():
            _become_owner(connection)
            _lock(connection)
            plan = plan_upgrade(connection)
            if not plan.is_needed:
                return plan, []
            if plan.leases:
                raise LeaseHeldError(f"{_at_work(plan.leases)}: run `lakefork upgrade` when it has ended")
            return plan, _apply(connection, plan.scripts)
    except psycopg.errors.LockNotAvailable:
        raise LeaseHeldError(
            f"the catalog was in use for {LOCK_TIMEOUT}, and nothing was changed: run `lakefork upgrade` again"
        ) from None
    except psycopg.errors.DatabaseError as error:
        reason = ": ".join(filter(None, (error.diag.message_primary, error.diag.message_detail)))
        raise SetupError(f"the upgrade failed, and nothing was changed: {reason}") from error


def _become_owner(connection: Connection) -> None:
    """Switches to the owner of the schema, because views read with their owner's rights."""
    row = connection.execute(
        "SELECT quote_ident(r.rolname) AS owner, r.rolname = current_user AS is_mine "
        "FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'lakefork'"
    ).fetchone()
    if row and not row["is_mine"]:
        connection.execute(f"SET LOCAL ROLE {row['owner']}")


def _lock(connection: Connection) -> None:
    """Keeps commits, forks, cleanup, retention and new leases out until the transaction ends, and another upgrade."""
    connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    try:
        with connection.transaction():
            for name in ("fence", "commits", "gc", "counts", "nodes"):
                connection.execute(f"LOCK TABLE lakefork_locks.{name} IN EXCLUSIVE MODE")
            connection.execute("LOCK TABLE lakefork.lease IN SHARE ROW EXCLUSIVE MODE")
    except psycopg.errors.InvalidSchemaName:
        plan_upgrade(connection)  # no catalog at all?
        raise CatalogVersionError("the schema of this database is too old: upgrades begin with Lakefork 0.1") from None


def _at_work(leases: list[HeldLease]) -> str:
    return f"{leases[0].name} is being worked on by {leases[0]}" + (
        f", and {len(leases) - 1} more" if len(leases) > 1 else ""
    )


def _apply(connection: Connection, scripts: list[UpgradeScript]) -> list[str]:
    is_linked = _is_linked_to_airflow(connection)
    connection.execute(read_script(DROP_CODE_FILE))
    for script in scripts:
        connection.execute(_replacing(read_script(script.path)))
    connection.execute(_replacing(read_script(CODE_FILE)))
    connection.execute(read_script(GRANT_AGAIN_FILE))
    connection.cursor().executemany(
        "INSERT INTO lakefork.schema_upgrade (name, lakefork_version) VALUES (%s, %s)",
        [(script.name, __version__) for script in scripts],
    )
    record_schema(connection)
    try:
        if is_linked:
            link_airflow(connection)
    except SetupError as error:
        return [f"system.jobs no longer knows what Airflow says: {error}; then run `lakefork airflow link`"]
    return []


def _replacing(script: str) -> str:
    return _CREATE.sub("CREATE OR REPLACE ", script)


def _is_linked_to_airflow(connection: Connection) -> bool:
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_proc WHERE oid = to_regprocedure('lakefork.airflow_status(text)') "
        "AND prosrc LIKE '%airflow.task\\_instance%') AS is_linked"
    ).fetchone()
    return bool(row and row["is_linked"])
