"""Checks the catalog's invariants and every file it refers to; changes nothing."""

from lakefork.params import CatalogFsckParams
from lakefork.spark.fsck import run_fsck
from lakefork.spark.job import run_job

if __name__ == "__main__":
    run_job(CatalogFsckParams, run_fsck)
