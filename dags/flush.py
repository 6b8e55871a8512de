"""
### flush: hot rows become Parquet batches

Finds the tables whose rows are due by their FLUSH POLICY, lets Spark write the newest version of each row to
`batch-<N>.parquet` (one file per user of a USER table), audits what was written, and publishes it in one transaction
per table. Rows that the previous flush published leave the hot store. `due` looks first:
without work no Spark is started.

**When:** within seconds of a table reaching its row limit or of `FLUSH TABLE`, and every minute for intervals. Runs may
overlap: each table is flushed by one of them at a time.

**Params:** `catalog`, `namespace`, `table` and `user_id` narrow it down; `force` flushes rows that are not due yet.

**When it fails:** nothing of the table that failed was published, and no row is lost: they are hot, and the next run
takes them up again. *Was not published*: the audit found something; the message names the expectation and the number of
rows, and the files are in `.quarantine` below the table. It is tried again after a pause that doubles with each
failure, or at once by `FLUSH TABLE`. *Cannot be written*: look at the storage; the next
run goes on. *Is being worked on by*: another run has a table that was asked for; wait for it, or stop it.
"""

from airflow.sdk import dag, task

from lakefork.orchestration.defaults import LOOKS_FOR, dag_defaults
from lakefork.orchestration.flush import FLUSHED, flush_schedule, is_flush_due
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.params import FlushParams


@dag(**dag_defaults(FlushParams, __doc__, schedule=flush_schedule(), max_active_runs=4, tags=("ingest",)))
def flush() -> None:
    @task.short_circuit(execution_timeout=LOOKS_FOR)
    def due(params: dict[str, object]) -> bool:
        return is_flush_due(params)

    due() >> LakeforkJobOperator(task_id="flush", job="flush", outlets=[FLUSHED])  # type: ignore[call-arg]


flush()
