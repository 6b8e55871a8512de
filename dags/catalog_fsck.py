"""
### catalog_fsck: is everything that the catalog says true?

Checks the catalog's invariants in Postgres (counters, versions, parents, paths, snapshots, totals) and, spread over
Spark, that every file it refers to exists with its recorded size. It changes nothing.

**When:** every night, and by hand whenever in doubt.

**Params:** `catalog` to check one catalog only; `deep` to open every file and compare footer, row count and statistics.

**When it fails:** the last lines of the task log list each finding with catalog and object. A missing file is restored
from a backup of the storage; a broken invariant of the catalog is a bug: keep `lakefork dump` of it for the report.
The run can be repeated at any time.
"""

from airflow.sdk import dag

from lakefork.orchestration.defaults import at, dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.params import CatalogFsckParams


@dag(**dag_defaults(CatalogFsckParams, __doc__, schedule=at("0 3 * * *"), tags=("check",)))
def catalog_fsck() -> None:
    LakeforkJobOperator(task_id="catalog_fsck", job="catalog_fsck")


catalog_fsck()
