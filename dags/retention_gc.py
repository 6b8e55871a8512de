"""
### retention_gc: expire old snapshots and what only they needed

Every catalog keeps its own snapshots for a time, or a number of the newest ones (settings `retention.*`, `lakefork
retention`, or the table options `retain_for` and `retain_snapshots`); tagged ones are kept for ever. This run first
makes a plan: which snapshots each catalog gives up, and which files are no longer needed. It then carries out exactly
that, in small transactions. Files that no catalog has any longer are scheduled for `file_cleanup`; this job deletes
none. `file_cleanup` follows automatically, and takes files that are old enough (`cleanup.older_than`). Expired forks
are dropped, and old records of runs and audits are removed.

**When:** nightly.

**Params:** `retain_snapshots` and `retain_for` are the policy of this run; without them those of tables, catalogs and
settings apply. `dry_run` only prints the plan. `require_approval` shows it here, under *Required Actions*, and waits
for approval; if the facts have changed by then, the run stops and says so. `plan_id` carries out an earlier plan.

**When it fails:** nothing is lost, and the next run resumes where this one stopped. *Has changed since*: make a new
plan.
"""

from airflow.sdk import dag

from lakefork.model.params import RetentionGcParams
from lakefork.orchestration.approval import job_with_approval
from lakefork.orchestration.cleanup import EXPIRED
from lakefork.orchestration.defaults import cron_schedule, dag_defaults


@dag(**dag_defaults(RetentionGcParams, __doc__, schedule=cron_schedule("30 2 * * *")))
def retention_gc() -> None:
    job_with_approval("retention_gc", outlets=[EXPIRED])


retention_gc()
