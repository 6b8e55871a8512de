"""Gives up old snapshots, and all that only they needed."""

from lakefork.model.params import RetentionGcParams
from lakefork.spark.job import run_job
from lakefork.upkeep.retention.run import run_retention_gc

if __name__ == "__main__":
    run_job(RetentionGcParams, run_retention_gc)
