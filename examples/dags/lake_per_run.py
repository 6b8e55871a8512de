"""
### lake_per_run: a lake of its own for each run

Forks a catalog, tries a change in the fork, checks the result, and drops the fork, also when the check failed. The
forked catalog is not changed, and runs do not see each other.

**Params:** `parent`, the catalog to fork.

**When it fails:** the log of `try_it` says what was found. A fork that could not be dropped expires after two hours.
"""

import hashlib
from datetime import timedelta

from airflow.sdk import Param, dag, task


@task
def fork(parent: str, run_id: str) -> str:
    """The name is made from the run: when the task is cleared, it is the same fork."""
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import fork_catalog
    from lakefork.orchestration.database import catalog_dsn

    name = f"run_{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"
    with connect(catalog_dsn()) as connection:
        fork_catalog(connection, parent, name, expires_after=timedelta(hours=2), if_not_exists=True)
    return name


@task
def try_it(catalog: str) -> int:
    """What you want to know before you do it to the real catalog."""
    from lakefork.orchestration.database import catalog_dsn
    from lakefork.settings import load_settings
    from lakefork.sql.engine import Engine
    from lakefork.sql.session import Role, Session

    with Engine(load_settings(), catalog_dsn()) as engine:
        *_, left = engine.execute(
            Session(catalog, role=Role.ADMIN),
            "DELETE FROM web.views WHERE seconds < 1; SELECT count(*) FROM web.views WHERE seconds < 1",
        )
    (found,) = left.rows[0]
    if found:
        raise ValueError(f"{found} views are still shorter than a second")
    return found


@task
def drop(catalog: str) -> None:
    from lakefork.catalog.catalogs import drop_catalog, find_catalog
    from lakefork.catalog.connection import connect
    from lakefork.orchestration.database import catalog_dsn

    with connect(catalog_dsn()) as connection:
        drop_catalog(connection, find_catalog(connection, catalog), author="lake_per_run")


@dag(schedule=None, catchup=False, tags=["example"], params={"parent": Param("demo", type="string")}, doc_md=__doc__)
def lake_per_run() -> None:
    name = fork("{{ params.parent }}", "{{ run_id }}")
    try_it(name) >> drop(name).as_teardown(setups=name)


lake_per_run()
