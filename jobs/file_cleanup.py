"""Removes files that no catalog needs any more."""

from lakefork.params import FileCleanupParams
from lakefork.spark.file_cleanup import run_file_cleanup
from lakefork.spark.job import run_job

if __name__ == "__main__":
    run_job(FileCleanupParams, run_file_cleanup)
