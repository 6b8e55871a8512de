"""The API server: SQL over HTTP, and the console."""
