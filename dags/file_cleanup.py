"""
### file_cleanup: delete files that no catalog needs

Takes the files that `retention_gc` scheduled, some thousand at a time. For each batch it blocks forks and commits for a
moment, searches for every file in all catalogs once more, and records in `system.deletions` what it is about to
delete; then it deletes the files. A file that is needed again is removed from the list. In doubt nothing is deleted.

**When:** nightly, and after each retention_gc. A run after retention_gc deletes what earlier runs gave up: files that
were scheduled just now are younger than `cleanup.older_than` and wait for a later run. `choose` checks first: if
no file is old enough, Spark is not started.

**Params:** `older_than`: only files that were given up longer ago than this (a query that was planned before may still
open them). `orphans` also searches storage for files that no catalog knows. `dry_run` only prints the plan;
`require_approval` shows it here, under *Required Actions*, and waits for approval. `plan_id` carries out an
earlier plan.

**When it fails:** files that were recorded but not deleted are deleted by the next run. *Could not be removed*: check
the storage's permissions. *Has none of the newest files*: check that the right storage is mounted. *Has changed since*:
make a new plan.
"""

from airflow.sdk import dag

from lakefork.model.params import FileCleanupParams
from lakefork.orchestration.approval import job_with_approval
from lakefork.orchestration.cleanup import cleanup_schedule, is_cleanup_due
from lakefork.orchestration.defaults import dag_defaults


@dag(**dag_defaults(FileCleanupParams, __doc__, schedule=cleanup_schedule()))
def file_cleanup() -> None:
    job_with_approval("file_cleanup", is_due=is_cleanup_due)


file_cleanup()
