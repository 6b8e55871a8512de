"""
### flush: write hot rows to Parquet batches

Finds the tables whose rows are due by their FLUSH POLICY, has Spark write the newest version of each row to
`batch-<N>.parquet` (one file per user of a USER table), audits the files, and publishes them in one transaction
per table. Rows that the previous flush published are trimmed from the hot store. `due` checks first:
if nothing is due, Spark is not started.

**When:** within seconds after a table reaches its row limit or after `FLUSH TABLE`, and every minute for intervals.
Runs may overlap: each table is flushed by one of them at a time.

**Params:** `catalog`, `namespace`, `table` and `user_id` restrict the run; `force` flushes rows that are not due yet.

**When it fails:** nothing of the failed table was published, and no row is lost: rows stay hot, and the next run
flushes them. *Was not published*: the audit failed; the message names the expectation and the number of
rows, and the files are in `.quarantine` below the table. The table is retried after a pause that doubles with each
failure, or at once by `FLUSH TABLE`. *Cannot be written*: check the storage; the next
run continues. *Is being worked on by*: another run has a requested table; wait for it, or stop it.
"""

from airflow.sdk import dag, task

from lakefork.model.params import FlushParams
from lakefork.orchestration.defaults import DUE_CHECK_TIMEOUT, dag_defaults
from lakefork.orchestration.flush import FLUSHED, flush_schedule, is_flush_due
from lakefork.orchestration.spark_job import LakeforkJobOperator


@dag(**dag_defaults(FlushParams, __doc__, schedule=flush_schedule(), max_active_runs=4, tags=("ingest",)))
def flush() -> None:
    @task.short_circuit(execution_timeout=DUE_CHECK_TIMEOUT)
    def due(params: dict[str, object]) -> bool:
        return is_flush_due(params)

    due() >> LakeforkJobOperator(task_id="flush", job="flush", outlets=[FLUSHED])  # type: ignore[call-arg]


flush()
