"""Spark: submitting jobs, the frame every job runs in, and the runners of plans."""
