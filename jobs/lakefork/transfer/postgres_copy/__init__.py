"""postgres_copy: a Postgres becomes another Postgres, or tables of the lake, as it was at one moment."""
