"""Which Postgres to use: the one of LAKEFORK_DSN, or the embedded one."""

from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import Settings


def database_url(settings: Settings) -> str:
    """The DSN; without LAKEFORK_DSN the embedded Postgres must be running."""
    return settings.dsn or EmbeddedPostgres(settings).url()
