"""Merges the batches of each owner into few sorted ones with one version per key; old snapshots read as before."""

from lakefork.model.params import SnapshotDedupParams
from lakefork.spark.job import run_job
from lakefork.upkeep.dedup.run import run_dedup

if __name__ == "__main__":
    run_job(SnapshotDedupParams, run_dedup)
