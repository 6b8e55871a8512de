"""Copies a Postgres, as it was at one moment, into another Postgres or into a catalog."""

import sys

from lakefork.quality.lean_import import start_import

if __name__ == "__main__":
    if '"into"' in "".join(sys.argv):
        start_import()  # the audit's library takes seconds

    from lakefork.model.params import PostgresCopyParams
    from lakefork.quality.suites import expectations_directory
    from lakefork.spark.job import JobContext, run_job
    from lakefork.transfer.postgres_copy.lake_run import LakeDestination
    from lakefork.transfer.postgres_copy.postgres_run import PostgresDestination
    from lakefork.transfer.postgres_copy.run import Destination, run_copy
    from lakefork.upkeep.flush.audit import FlushAudit

    def action(context: JobContext, params: PostgresCopyParams) -> dict[str, object]:
        destination: Destination = (
            LakeDestination(params.into, FlushAudit(context.storage, expectations_directory(context.settings)))
            if params.into
            else PostgresDestination(params.target or "")
        )
        return run_copy(context, params, destination)

    run_job(PostgresCopyParams, action)
