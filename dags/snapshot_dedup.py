"""
### snapshot_dedup: merge batches and drop superseded versions

Each flush adds a batch per user. Where there are many batches, or where many of their rows are superseded, Spark merges
them: one version per key, sorted, live and deleted rows in separate files. Deleted rows older than the table's
`deleted_retention` are removed. Each group of batches is replaced in one commit; existing snapshots
keep reading the old files.

**When:** nightly, and after a flush that left as many batches of a user as the setting `dedup.min_batches`;
`due` checks first. Run it manually after a large load. Flushes can run at the same time.

**Params:** `catalog`, `namespace` and `table` restrict the run; `min_batches` is how many files justify a merge.

**When it fails:** nothing is lost: published groups stay merged, the others are unchanged, and the next
run merges them. *Cannot be written*: check the storage. *The catalog says*: a file does not contain what it
should; run `catalog_fsck`.
"""

from airflow.sdk import dag, task

from lakefork.model.params import SnapshotDedupParams
from lakefork.orchestration.dedup import dedup_schedule, is_dedup_due
from lakefork.orchestration.defaults import DUE_CHECK_TIMEOUT, dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator


@dag(**dag_defaults(SnapshotDedupParams, __doc__, schedule=dedup_schedule(), tags=("upkeep",)))
def snapshot_dedup() -> None:
    @task.short_circuit(execution_timeout=DUE_CHECK_TIMEOUT)
    def due(dag_run: object) -> bool:
        return is_dedup_due(dag_run)

    due() >> LakeforkJobOperator(task_id="snapshot_dedup", job="snapshot_dedup")  # type: ignore[call-arg]


snapshot_dedup()
