"""Receipts: what the statements of a request did, kept in the transaction of each change, so that it is done once."""

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lakefork.catalog.connection import Connection
from lakefork.database_errors import all_domain_errors
from lakefork.errors import ConflictError, DatabaseError, LakeforkError
from lakefork.hot.connections import ArrowConnection
from lakefork.model.predicates import postgres_text
from lakefork.pools import Pool
from lakefork.queries import load
from lakefork.sql.results import Affected, Done, Result

_SQL = load(__package__)


@dataclass(frozen=True)
class Receipt:
    """One statement of a request; digest: of the whole request."""

    catalog_id: int
    user_id: str
    request_key: str
    digest: str
    statement: int = 0


_current: contextvars.ContextVar[Receipt | None] = contextvars.ContextVar("receipt", default=None)


def is_wanted() -> bool:
    """Whether the statement that runs now is to leave a receipt."""
    return _current.get() is not None


def leave_receipt(connection: ArrowConnection, affected_rows: int) -> None:
    """Called in the transaction of a change; does nothing for requests without a key."""
    receipt = _current.get()
    if receipt is None:
        return
    texts = ", ".join(postgres_text(text) for text in (receipt.user_id, receipt.request_key, receipt.digest))
    connection.execute(
        "INSERT INTO lakefork.api_receipt (catalog_id, user_id, request_key, digest, statement, affected_rows) "
        f"VALUES ({receipt.catalog_id}, {texts}, {receipt.statement}, {affected_rows})"
    )


class Receipts:
    """Those of one request. The primary key decides between attempts that run at the same time."""

    def __init__(self, pool: Pool[Connection], receipt: Receipt) -> None:
        self._pool, self._receipt = pool, receipt
        self._known = self._read()

    def once(self, place: int, text: str, execute: Callable[[], Result]) -> Result:
        """The answer of an earlier attempt; without one, executes the statement."""
        if place in self._known:
            return _answer(text, self._known[place])
        try:
            with self._leaving(place):
                result = execute()
            self._complete(place, result)
        except LakeforkError as error:
            # Another attempt may have been faster, or this one done before it lost Postgres.
            if place not in self._known_after(error):
                raise
            return _answer(text, self._known[place])
        return result

    def _known_after(self, error: LakeforkError) -> dict[int, int | None]:
        try:
            self._known = self._read()
        except DatabaseError:
            raise error from None
        return self._known

    @contextmanager
    def _leaving(self, place: int) -> Iterator[None]:
        before = _current.set(replace(self._receipt, statement=place))
        try:
            yield
        finally:
            _current.reset(before)

    def _read(self) -> dict[int, int | None]:
        with all_domain_errors(), self._pool.connection() as connection:
            rows = connection.execute(_SQL["receipts"], vars(self._receipt)).fetchall()
        if any(row["digest"] != self._receipt.digest for row in rows):
            raise ConflictError("this Idempotency-Key was used for another request: use a new key for each")
        return {row["statement"]: row["affected_rows"] for row in rows}

    def _complete(self, place: int, result: Result) -> None:
        """For what left no receipt in a transaction: definitions, system tables, and changes of no row."""
        affected = result.affected_rows if isinstance(result, Affected) else None
        given = {**vars(self._receipt), "statement": place, "affected_rows": affected}
        with all_domain_errors(), self._pool.connection() as connection:
            connection.execute(_SQL["complete_receipt"], given)


def _answer(text: str, affected_rows: int | None) -> Result:
    return Done(text) if affected_rows is None else Affected(text, affected_rows)
