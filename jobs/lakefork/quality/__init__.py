"""Audits: Great Expectations on what a flush has staged, before it is published."""
