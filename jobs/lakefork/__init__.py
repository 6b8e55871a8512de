"""Lakefork: a lakehouse for very many tenants on one Postgres and one pile of Parquet."""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from lakefork.client import connect as connect
    from lakefork.client import new_key as new_key


def __getattr__(name: str) -> Any:
    """The client is imported when it is asked for, so that nothing else pays for it."""
    if name in ("connect", "new_key"):
        from lakefork import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
