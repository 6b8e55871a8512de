"""Compares manifests, Parquet footers and catalog, and writes the manifests that are wrong anew."""

from lakefork.params import ManifestRebuildParams
from lakefork.spark.job import run_job
from lakefork.spark.manifest_rebuild import run_manifest_rebuild

if __name__ == "__main__":
    run_job(ManifestRebuildParams, run_manifest_rebuild)
