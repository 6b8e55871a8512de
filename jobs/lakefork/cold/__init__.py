"""The cold tier: Parquet batches and their statistics."""
