"""Keeps a namespace, or a whole catalog, at a place of backups, as it is at one moment."""

from lakefork.model.params import NamespaceBackupParams
from lakefork.spark.job import run_job
from lakefork.transfer.backup.run import run_namespace_backup

if __name__ == "__main__":
    run_job(NamespaceBackupParams, run_namespace_backup)
