"""flush: writes hot rows to audited Parquet batches."""
