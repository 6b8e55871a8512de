"""Loads SQL by name from queries.sql next to the code that runs it."""

import functools
from importlib import resources


@functools.cache
def load(package: str) -> dict[str, str]:
    """Returns the queries of a package's queries.sql; each follows a line `-- name: purpose`."""
    queries: dict[str, str] = {}
    name = None
    for line in resources.files(package).joinpath("queries.sql").read_text().splitlines():
        if line.startswith("-- ") and ": " in line and " " not in line[3 : line.index(": ")]:
            name = line[3 : line.index(": ")]
            queries[name] = ""
        elif name:
            queries[name] += line + "\n"
    return {name: text.strip().rstrip(";") for name, text in queries.items()}
