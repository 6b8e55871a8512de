"""Planners: pure functions from facts to a plan. No I/O here."""
