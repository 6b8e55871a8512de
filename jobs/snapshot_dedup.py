"""Merges the batches of each owner into few sorted ones with one version per key; old snapshots read as before."""

from lakefork.params import SnapshotDedupParams
from lakefork.spark.dedup import run_dedup
from lakefork.spark.job import run_job

if __name__ == "__main__":
    run_job(SnapshotDedupParams, run_dedup)
