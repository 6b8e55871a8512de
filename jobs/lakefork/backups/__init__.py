"""Backups as they lie in storage: their format, the places that hold them, and who may use a place."""
