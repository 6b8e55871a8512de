"""Removes files that no catalog needs."""

from lakefork.model.params import FileCleanupParams
from lakefork.spark.job import run_job
from lakefork.upkeep.cleanup.run import run_file_cleanup

if __name__ == "__main__":
    run_job(FileCleanupParams, run_file_cleanup)
