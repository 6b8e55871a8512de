"""
### snapshot_dedup: many batches with old versions become few without

Each flush adds a batch per user. Where there are many of them, or where many of their rows are superseded, Spark merges
them: one version per key, sorted, live rows and deleted ones in separate files. Deleted rows older than the table's
`deleted_retention` go altogether. Each group of batches is replaced in one commit; snapshots that were there before
read the old files as before.

**When:** every night, and after a flush that left as many batches of a user as the setting `dedup.min_batches` says;
`due` looks first. By hand after a large load. Flushes go on meanwhile.

**Params:** `catalog`, `namespace` and `table` narrow it down; `min_batches` is how many files make a merge worth it.

**When it fails:** nothing is lost: groups that were published stay merged, the others are as they were, and the next
run takes them up again. *Cannot be written*: look at the storage. *The catalog says*: a file does not hold what it
should; run `catalog_fsck`.
"""

from airflow.sdk import dag, task

from lakefork.orchestration.dedup import dedup_schedule, is_dedup_due
from lakefork.orchestration.defaults import LOOKS_FOR, dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.params import SnapshotDedupParams


@dag(**dag_defaults(SnapshotDedupParams, __doc__, schedule=dedup_schedule(), tags=("upkeep",)))
def snapshot_dedup() -> None:
    @task.short_circuit(execution_timeout=LOOKS_FOR)
    def due(dag_run: object) -> bool:
        return is_dedup_due(dag_run)

    due() >> LakeforkJobOperator(task_id="snapshot_dedup", job="snapshot_dedup")  # type: ignore[call-arg]


snapshot_dedup()
