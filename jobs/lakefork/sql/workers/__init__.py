"""Processes that run DuckDB: users' expressions can crash, stall or fill only a process that may die."""
