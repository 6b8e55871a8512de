"""
### snapshot_dedup: many batches with old versions become few without

Each flush adds a batch per user. Where there are many of them, or where many of their rows are superseded, Spark merges
them: one version per key, sorted, live rows and deleted ones in separate files. Deleted rows older than the table's
`deleted_retention` go altogether. Each group of batches is replaced in one commit; snapshots that were there before
read the old files as before.

**When:** every night, and by hand after a large load. Flushes go on meanwhile.

**Params:** `catalog`, `namespace` and `table` narrow it down; `min_batches` is how many files make a merge worth it.

**When it fails:** nothing is lost: groups that were published stay merged, the others are as they were, and the next
run takes them up again. *Cannot be written*: look at the storage. *The catalog says*: a file does not hold what it
should; run `catalog_fsck`.
"""

from airflow.sdk import dag

from lakefork.orchestration.defaults import at, dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.params import SnapshotDedupParams


@dag(**dag_defaults(SnapshotDedupParams, __doc__, schedule=at("30 1 * * *")))
def snapshot_dedup() -> None:
    LakeforkJobOperator(task_id="snapshot_dedup", job="snapshot_dedup")


snapshot_dedup()
