"""The cold tier: Parquet batches and what their footers say."""
