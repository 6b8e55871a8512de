"""Leases: what one job may work on exclusively, and how they are named."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.errors import LeaseHeldError, LeaseLostError
from lakefork.model.tables import TableRef
from lakefork.queries import load

_SQL = load(__package__)


@dataclass(frozen=True)
class HeldLease:
    """A lease of another run; seconds_left: until it expires unless renewed."""

    name: str
    holder: str
    since: str
    seconds_left: float

    def __str__(self) -> str:
        return f"{self.holder} since {self.since} UTC"


class Leases:
    """What one job may work on exclusively, for as long as it renews them all together."""

    def __init__(self, holder: str, seconds: float) -> None:
        self.holder = holder
        self.seconds = seconds
        self.names: set[str] = set()
        self._lock = threading.Lock()  # the heartbeat must not miss leases that are being released

    def take(self, connection: Connection, name: str) -> None:
        if not self.acquire_available(connection, [name]):
            held = find_held(connection, [name])
            holder = held[0] if held else "another run"
            raise LeaseHeldError(f"{name} is being worked on by {holder}: wait for it, or stop it")

    def acquire_available(self, connection: Connection, names: Iterable[str]) -> set[str]:
        """Acquires the leases that no other run holds, and returns their names."""
        rows = connection.execute(
            "SELECT lakefork.take_leases(%s, %s, %s) AS name", (list(names), self.holder, self.seconds)
        )
        taken = {row["name"] for row in rows}
        self.names |= taken
        return taken

    def renew(self, connection: Connection) -> None:
        with self._lock:
            expected = len(self.names)  # before the query: others may be acquired concurrently
            row = connection.execute(
                "SELECT lakefork.renew_leases(%s, %s) AS held", (self.holder, self.seconds)
            ).fetchone()
        if row is None or row["held"] < expected:
            raise LeaseLostError(f"{self.holder} lost its lease on {', '.join(sorted(self.names))} and stops")

    def release(self, connection: Connection) -> None:
        with self._lock:
            connection.execute("SELECT lakefork.release_leases(%s)", (self.holder,))
            self.names.clear()


def find_held(connection: Connection, names: Iterable[str] | None = None) -> list[HeldLease]:
    """Returns those of the leases that somebody has; without names, of all leases."""
    parameters = {"names": None if names is None else list(names)}
    return [HeldLease(**row) for row in connection.execute(_SQL["held_leases"], parameters)]


def require_leases(connection: Connection, job_id: str, names: Sequence[str]) -> None:
    """Raises LeaseLostError unless the job has them; then nobody takes them until the transaction ends."""
    with domain_errors():
        connection.execute(_SQL["require_leases"], {"job_id": job_id, "names": list(names)})


def table_lease(catalog_id: int, table_id: int) -> str:
    return f"table/{catalog_id}/{table_id}"


def work_lease(job: str, table: TableRef) -> str:
    """Returns the lease for work on a table's files; flush and dedup have different ones."""
    return table_lease(*table) if job == "flush" else f"dedup/{table[0]}/{table[1]}"
