"""The text of `lakefork upgrade`."""

import argparse
import sys
from typing import TYPE_CHECKING

from lakefork.cli.answers import database, respond

if TYPE_CHECKING:
    from lakefork.catalog.upgrade import UpgradePlan


def upgrade(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.upgrade import plan_upgrade, upgrade_catalog

    with connect(database(), check_version=False) as connection:
        plan, left_to_do = (plan_upgrade(connection), []) if arguments.dry_run else upgrade_catalog(connection)
    for line in left_to_do:
        print(f"warning: {line}", file=sys.stderr)
    return respond(arguments, _as_text(plan, arguments.dry_run), _as_json(plan, arguments.dry_run))


def _as_json(plan: "UpgradePlan", dry_run: bool) -> dict[str, object]:
    from lakefork import __version__

    return {
        "from": plan.lakefork,
        "to": __version__,
        "needed": plan.is_needed,
        "upgraded": plan.is_needed and not dry_run,
        "scripts": [script.name for script in plan.scripts],
        "leases": [f"{lease.name}: {lease}" for lease in plan.leases],
    }


def _as_text(plan: "UpgradePlan", dry_run: bool) -> str:
    from lakefork import __version__

    if not plan.is_needed:
        return f"the schema is that of this Lakefork {__version__}: nothing to do"
    changes = [f"  {script.name}: {script.purpose}" for script in plan.scripts] or ["  no table changes"]
    changes += ["  functions, views and triggers are made again"]
    before = plan.lakefork or "before 0.2"
    if not dry_run:
        return "\n".join([f"the schema was upgraded from Lakefork {before} to {__version__}:", *changes])
    waiting = [f"  wait for {lease.name}, which {lease} is working on" for lease in plan.leases]
    return "\n".join(
        [f"`lakefork upgrade` from {before} to {__version__} would, in one transaction:", *waiting, *changes]
    )
