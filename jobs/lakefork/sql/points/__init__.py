"""Statements about rows by key: planned once, and executed in few round trips without a query worker."""
