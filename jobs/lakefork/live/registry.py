"""system.live_queries: this server's subscriptions in Postgres, kept under a lease."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.database_errors import all_domain_errors
from lakefork.pools import Pool
from lakefork.queries import load

LEASE_SECONDS = 4.0
_SQL = load(__package__)


@dataclass(frozen=True)
class Entry:
    """A subscription as others see it."""

    live_id: uuid.UUID
    catalog_id: int
    table_id: int
    user_id: str
    owner_id: str | None
    subscription_id: str
    query: str
    column_ids: frozenset[int]
    created_at: float


class Registry:
    def __init__(self, pool: Pool[Connection], node: str) -> None:
        self._pool, self._node = pool, node
        self._server = uuid.uuid4()
        self._is_known = False

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds subscriptions, or notes their new definitions."""
        self._require_known()
        columns: Mapping[str, list[Any]] = {
            "ids": [one.live_id for one in entries],
            "catalogs": [one.catalog_id for one in entries],
            "tables": [one.table_id for one in entries],
            "users": [one.user_id for one in entries],
            "owners": [one.owner_id for one in entries],
            "names": [one.subscription_id for one in entries],
            "queries": [one.query for one in entries],
            "columns": [f"{{{','.join(map(str, sorted(one.column_ids)))}}}" for one in entries],
            "times": [one.created_at for one in entries],
        }
        self._execute("add_queries", {"server": self._server, **columns})

    def remove(self, ids: Iterable[uuid.UUID]) -> None:
        self._execute("remove_queries", {"ids": list(ids)})

    def renew(self, rate: float, resyncs: int, look_seconds: float) -> bool:
        """Renews the lease, with what the page shows; false if all subscriptions must be added again."""
        if not self._is_known:
            return True
        with all_domain_errors(), self._pool.connection() as connection:
            given = {"server": self._server, "seconds": LEASE_SECONDS}
            shown = {"rate": rate, "resyncs": resyncs, "look": look_seconds}
            row = connection.execute(_SQL["renew_server"], {**given, **shown}).fetchone()
        self._is_known = bool(row and row["known"])
        return self._is_known

    def count(self, sent: Mapping[uuid.UUID, tuple[int, int]]) -> None:
        """Notes how many messages and bytes subscriptions have been sent so far."""
        messages, sizes = zip(*sent.values(), strict=True)
        self._execute("count", {"ids": list(sent), "messages": list(messages), "bytes": list(sizes)})

    def ended(self) -> dict[uuid.UUID, str]:
        """Returns the subscriptions that somebody else wants to end, with the reasons."""
        if not self._is_known:
            return {}
        with all_domain_errors(), self._pool.connection() as connection:
            rows = connection.execute(_SQL["ended"], {"server": self._server}).fetchall()
        return {row["live_id"]: row["end_reason"] for row in rows}

    def permissions(self, users: Sequence[tuple[str, str, uuid.UUID | None]]) -> list[tuple[bool, str]]:
        """Returns for each catalog, user and token whether it is gone, and what changes with its permissions."""
        catalogs, names, tokens = zip(*users, strict=True)
        given = {"catalogs": list(catalogs), "users": list(names), "tokens": list(tokens)}
        with all_domain_errors(), self._pool.connection() as connection:
            rows = connection.execute(_SQL["permissions"], given).fetchall()
        return [(row["is_gone"], row["state"]) for row in rows]

    def close(self) -> None:
        if self._is_known:
            self._execute("remove_server", {"server": self._server})

    def _require_known(self) -> None:
        if not self._is_known:
            given = {"server": self._server, "node": self._node, "seconds": LEASE_SECONDS}
            self._execute("add_server", given)
            self._is_known = True

    def _execute(self, name: str, given: Mapping[str, Any]) -> None:
        with all_domain_errors(), self._pool.connection() as connection:
            connection.execute(_SQL[name], given)
