"""Grammar and engine for SQL over hot and cold rows."""
