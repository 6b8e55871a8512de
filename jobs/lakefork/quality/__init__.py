"""Audits: Great Expectations over what a flush has staged, before it is published."""
