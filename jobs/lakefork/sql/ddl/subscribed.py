"""DROP TABLE and DROP COLUMN of what live queries use: refused, or with FORCE the end of these."""

from collections.abc import Sequence
from dataclasses import dataclass

from lakefork.catalog.connection import Connection
from lakefork.database_errors import domain_errors
from lakefork.errors import ConflictError
from lakefork.model.tables import TableDefinition


class SubscribedError(ConflictError):
    """Live queries use the table or the column."""

    retryable = False


@dataclass(frozen=True)
class SubscribedGuard:
    """columns: None for the whole table; name: what is dropped, as messages call it."""

    columns: Sequence[int] | None
    name: str
    force: bool

    def check(self, connection: Connection, definition: TableDefinition) -> None:
        """Raises if live queries use it; with FORCE they end when the transaction commits."""
        try:
            with domain_errors():
                connection.execute(
                    "SELECT lakefork.guard_subscribed(%s, %s, %s::bigint[], %s, %s)",
                    (*definition.ref, None if self.columns is None else list(self.columns), self.name, self.force),
                )
        except ConflictError as error:
            raise SubscribedError(str(error)) from error
