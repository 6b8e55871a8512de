"""Spark: submits jobs, runs them in a common frame, reads tables."""
