"""
### catalog_fsck: check the catalog and its files

Checks the catalog's invariants in Postgres (counters, versions, parents, paths, snapshots, totals) and, distributed
over Spark, that every file it refers to exists with its recorded size. It changes nothing.

**When:** nightly, and manually whenever in doubt.

**Params:** `catalog` to check one catalog only; `deep` to open every file and compare footer, row count and statistics.

**When it fails:** the last lines of the task log list each finding with catalog and object. Restore a missing file
from a backup of the storage. A broken invariant of the catalog is a bug: keep a `lakefork dump` for the report.
The run can be repeated at any time.
"""

from airflow.sdk import dag

from lakefork.model.params import CatalogFsckParams
from lakefork.orchestration.defaults import cron_schedule, dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator


@dag(**dag_defaults(CatalogFsckParams, __doc__, schedule=cron_schedule("0 3 * * *"), tags=("check",)))
def catalog_fsck() -> None:
    LakeforkJobOperator(task_id="catalog_fsck", job="catalog_fsck")


catalog_fsck()
