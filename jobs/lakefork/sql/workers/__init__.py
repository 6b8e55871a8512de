"""Worker processes that run DuckDB, so that users' expressions can crash, stall or exhaust only a worker."""
