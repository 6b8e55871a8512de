"""INSERT, UPDATE and DELETE: write new versions of rows."""
