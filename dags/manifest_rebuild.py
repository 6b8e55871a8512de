"""
### manifest_rebuild: do the manifests say what is in the files?

Looks, spread over Spark, at every directory with batches: lists it, reads the footers, and compares them and
`manifest.json` with the catalog. Manifests that are missing, broken, old or wrong are written anew from the catalog.
Tables that a flush or a dedup is working on are left out.

**When:** every night, and by hand whenever in doubt. Readers do without a manifest that they cannot trust, and the next
flush writes it; this finds those that nobody reads.

**Params:** `catalog`, `namespace`, `table` and `user_id` narrow it down; `check_only` changes nothing, and fails if
anything differs.

**When it fails:** the log lists each finding with its path. *missing file*, *unreadable file*, *wrong file*: the
storage has lost or changed a batch; restore it from a backup. With `check_only`: run it again without. *cannot be
written*: look at the storage; the next run goes on. The run can be repeated at any time.
"""

from airflow.sdk import dag

from lakefork.orchestration.defaults import at, dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.params import ManifestRebuildParams


@dag(**dag_defaults(ManifestRebuildParams, __doc__, schedule=at("30 2 * * *"), tags=("check", "upkeep")))
def manifest_rebuild() -> None:
    LakeforkJobOperator(task_id="manifest_rebuild", job="manifest_rebuild")


manifest_rebuild()
