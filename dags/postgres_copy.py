"""
### postgres_copy: copy a Postgres into another Postgres, or into the lake

Everything is read as it was at one moment: a small process holds an exported snapshot and locks on the tables. Tables
are copied in parallel, large ones in parts; indexes and constraints are built as tables are complete. Into a catalog,
all tables appear in one commit.

**When:** by hand; it has no schedule.

**Params:** `source`, and either `target` or `into`: names of Airflow connections, and of a catalog. `include` and
`exclude` choose tables by patterns such as `app.*`. `dry_run` prints the plan. Everything else: docs/copy.md.

**When it fails:** what is copied is kept. Clear the task, or run it with the same `copy_id` and `resume`, and it goes
on under the same snapshot. *The snapshot is lost*: add `not_consistent`, and parts that have changed are copied again.
No longer wanted: `lakefork copy abandon COPY_ID` lets the snapshot go and removes staged files.
"""

from airflow.sdk import dag

from lakefork.model.params import PostgresCopyParams
from lakefork.orchestration.defaults import dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator


@dag(**dag_defaults(PostgresCopyParams, __doc__, schedule=None, max_active_runs=4))
def postgres_copy() -> None:
    LakeforkJobOperator(task_id="postgres_copy", job="postgres_copy", connections=("source", "target"))


postgres_copy()
