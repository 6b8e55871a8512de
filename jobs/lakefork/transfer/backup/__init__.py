"""Backup and restore of namespaces: plan, tasks and driver of each."""
