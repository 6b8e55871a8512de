"""A Postgres of its own for a benchmark, durable as in production."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import Settings


@contextmanager
def benchmark_database() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="lakefork-bench-") as directory:
        settings = Settings.model_construct(**{**dict(Settings()), "dsn": None, "home": Path(directory) / "home"})
        server = EmbeddedPostgres(settings)
        dsn = server.start()
        try:
            with connect(dsn, check_version=False) as connection:
                init_catalog(connection)
            yield dsn
        finally:
            server.stop()
