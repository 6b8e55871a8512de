"""Removes entries of the manifest cache that nobody uses; needs no Spark."""

from lakefork.model.params import ManifestEvictionParams
from lakefork.spark.job import run_job
from lakefork.upkeep.manifest_eviction import run_manifest_eviction

if __name__ == "__main__":
    run_job(ManifestEvictionParams, run_manifest_eviction)
