"""Compares manifests, Parquet footers and the catalog, and rewrites wrong manifests."""

from lakefork.model.params import ManifestRebuildParams
from lakefork.spark.job import run_job
from lakefork.upkeep.manifest_rebuild.run import run_manifest_rebuild

if __name__ == "__main__":
    run_job(ManifestRebuildParams, run_manifest_rebuild)
