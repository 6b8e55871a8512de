"""Brings a backup into a catalog: all of it in one commit, or nothing."""

from lakefork.model.params import NamespaceRestoreParams
from lakefork.spark.job import run_job
from lakefork.transfer.backup.restore_run import run_namespace_restore

if __name__ == "__main__":
    run_job(NamespaceRestoreParams, run_namespace_restore)
