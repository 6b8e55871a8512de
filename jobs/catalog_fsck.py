"""Checks the catalog's invariants and every file it refers to; changes nothing."""

from lakefork.model.params import CatalogFsckParams
from lakefork.spark.job import run_job
from lakefork.upkeep.fsck.run import run_fsck

if __name__ == "__main__":
    run_job(CatalogFsckParams, run_fsck)
