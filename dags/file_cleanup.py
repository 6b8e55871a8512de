"""
### file_cleanup: files that no catalog needs are removed

Takes the files that `retention_gc` scheduled, some thousand at a time. For each batch it keeps forks and commits out
for a moment, looks for every file in all catalogs once more, and writes down in `system.deletions` what it is about to
remove; then it removes the files. A file that somebody came to need is taken off the list. In doubt nothing is removed.

**When:** every night, and after each retention_gc. Such a run removes what earlier ones gave up: files
that were scheduled just now are younger than `cleanup.older_than` and wait for a later run. `choose` looks first: if
nothing is old enough, no Spark is started.

**Params:** `older_than`: only files that were given up longer ago than this (a query that was planned before may still
open them). `orphans` also looks through storage for files that no catalog knows. `dry_run` only prints the plan;
`require_approval` shows it here, under *Required Actions*, and waits for somebody to agree. `plan_id` carries out an
earlier plan.

**When it fails:** what was written down and not removed is removed by the next run. *Could not be removed*: look at the
storage's permissions. *Has none of the newest files*: is the right storage mounted? *Has changed since*: plan again.
"""

from airflow.sdk import dag

from lakefork.orchestration.approval import job_with_approval
from lakefork.orchestration.cleanup import cleanup_schedule, is_cleanup_due
from lakefork.orchestration.defaults import dag_defaults
from lakefork.params import FileCleanupParams


@dag(**dag_defaults(FileCleanupParams, __doc__, schedule=cleanup_schedule()))
def file_cleanup() -> None:
    job_with_approval("file_cleanup", is_due=is_cleanup_due)


file_cleanup()
