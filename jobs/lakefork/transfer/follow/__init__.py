"""Follows a Postgres after a copy: receives its changes and applies each transaction once."""
