"""Moves hot rows into Parquet batches: reads, keeps the newest versions, writes, audits, publishes."""

from typing import Any

from lakefork.quality.lean_import import start_import

if __name__ == "__main__":
    start_import()  # takes seconds, so it begins before anything else, beside the start of Spark

    from lakefork.model.params import FlushParams
    from lakefork.quality.suites import expectations_directory
    from lakefork.spark.job import JobContext, run_job
    from lakefork.upkeep.flush.audit import FlushAudit
    from lakefork.upkeep.flush.run import run_flush

    def flush(context: JobContext, params: FlushParams) -> dict[str, Any]:
        return run_flush(context, params, FlushAudit(context.storage, expectations_directory(context.settings)))

    run_job(FlushParams, flush)
