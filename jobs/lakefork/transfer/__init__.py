"""Moves data out of and into an installation: dumps, exports."""
