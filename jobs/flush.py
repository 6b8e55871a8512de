"""Moves hot rows into Parquet batches: reads, keeps the newest versions, writes, audits, publishes."""

from lakefork.quality.lean_import import start_import

if __name__ == "__main__":
    start_import()  # takes seconds, so it begins before anything else, beside the start of Spark

    from lakefork.params import FlushParams
    from lakefork.quality.audit import FlushAudit
    from lakefork.spark.flush import run_flush
    from lakefork.spark.job import run_job

    run_job(FlushParams, lambda context, params: run_flush(context, params, FlushAudit(context.storage)))
