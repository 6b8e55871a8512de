"""manifest.json: its format and cache, and the only code that reads or writes it."""
