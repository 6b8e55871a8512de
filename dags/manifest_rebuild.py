"""
### manifest_rebuild: check manifests and rewrite wrong ones

Checks every directory with batches, distributed over Spark: lists it, reads the footers, and compares them and
`manifest.json` with the catalog. Manifests that are missing, broken, old or wrong are rewritten from the catalog.
Tables that a flush or a dedup is working on are skipped.

**When:** nightly, and manually whenever in doubt. Readers ignore a manifest that they cannot trust, and the next
flush writes it; this job finds manifests that nobody reads.

**Params:** `catalog`, `namespace`, `table` and `user_id` restrict the run; `check_only` changes nothing, and fails if
anything differs.

**When it fails:** the log lists each finding with its path. *missing file*, *unreadable file*, *wrong file*: the
storage has lost or changed a batch; restore it from a backup. With `check_only`: run it again without. *cannot be
written*: check the storage; the next run continues. The run can be repeated at any time.
"""

from airflow.sdk import dag

from lakefork.model.params import ManifestRebuildParams
from lakefork.orchestration.defaults import cron_schedule, dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator


@dag(**dag_defaults(ManifestRebuildParams, __doc__, schedule=cron_schedule("30 2 * * *"), tags=("check", "upkeep")))
def manifest_rebuild() -> None:
    LakeforkJobOperator(task_id="manifest_rebuild", job="manifest_rebuild")


manifest_rebuild()
