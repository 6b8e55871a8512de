"""Chooses the Postgres to use: that of LAKEFORK_DSN, or the embedded one."""

from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import Settings


def database_url(settings: Settings) -> str:
    """Returns the DSN; without LAKEFORK_DSN the embedded Postgres must be running."""
    return settings.dsn or EmbeddedPostgres(settings).url()
