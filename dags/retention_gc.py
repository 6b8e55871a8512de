"""
### retention_gc: old snapshots go, with all that only they needed

Every catalog keeps its own snapshots for a time, or the last so many of them (settings `retention.*`, `lakefork
retention`, or the table options `retain_for` and `retain_snapshots`); tagged ones stay for ever. This run first makes a
plan: which snapshots each catalog gives up, which files nobody needs then. It then carries out exactly that, in small
transactions. Files that no catalog has any more are scheduled for `file_cleanup`; this job removes none. `file_cleanup`
follows by itself, and takes what is old enough (`cleanup.older_than`). Forks past their time are dropped, and old
records of runs and audits go.

**When:** every night.

**Params:** `retain_snapshots` and `retain_for` are the policy of this run; without them those of tables, catalogs and
settings count. `dry_run` only prints the plan. `require_approval` shows it here, under *Required Actions*, and waits
for somebody to agree; if the facts have changed by then, it stops and says so. `plan_id` carries out an earlier plan.

**When it fails:** nothing is lost, and the next run goes on where this one stopped. *Has changed since*: make a new
plan.
"""

from airflow.sdk import dag

from lakefork.orchestration.approval import job_with_approval
from lakefork.orchestration.cleanup import GIVEN_UP
from lakefork.orchestration.defaults import at, dag_defaults
from lakefork.params import RetentionGcParams


@dag(**dag_defaults(RetentionGcParams, __doc__, schedule=at("30 2 * * *")))
def retention_gc() -> None:
    job_with_approval("retention_gc", outlets=[GIVEN_UP])


retention_gc()
