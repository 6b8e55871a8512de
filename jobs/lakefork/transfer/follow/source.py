"""The source of a copy that is followed: its slot, what it needs, and how far it is."""

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.errors import CopyRequiredError, SetupError
from lakefork.queries import load
from lakefork.transfer.follow.pgoutput import Relation
from lakefork.transfer.follow.state import Follow
from lakefork.transfer.follow.stream import ChangeStream, lsn_text
from lakefork.transfer.postgres_copy.plan import quote
from lakefork.transfer.postgres_copy.sessions import Endpoint, Identity, Session, find_endpoint, source_errors

SQL = load(__package__)
WAL_WARNING_BYTES = 8 << 30


@dataclass(frozen=True)
class FollowedSource:
    endpoint: Endpoint
    identity: Identity
    slot: str

    @classmethod
    def find(cls, follow: Follow) -> "FollowedSource":
        endpoint, identity = find_endpoint(follow.copy.source)
        if str(identity) != follow.copy.source_identity:
            raise CopyRequiredError(
                f"copy required: {endpoint.name!r} is another database or role ({identity}) than the one that was "
                f"copied ({follow.copy.source_identity})"
            )
        return cls(endpoint, identity, follow.slot)

    def changes(self, position: int) -> ChangeStream:
        return ChangeStream(self.endpoint, self.slot, position)

    def check(self, position: int) -> int:
        """Where the source is now; raises unless everything behind the position is still there."""
        row = self.look()
        name = self.endpoint.name
        if row["slot_name"] is None:
            raise CopyRequiredError(
                f"copy required: slot {self.slot} of {name!r} is gone, and with it the changes since "
                f"{lsn_text(position)}"
            )
        if row["wal_status"] == "lost":
            raise CopyRequiredError(
                f"copy required: slot {self.slot} of {name!r} was invalidated "
                f"({row['invalidation_reason'] or 'WAL removed'}), and with it the changes since {lsn_text(position)}"
            )
        if row["current"] < position or row["confirmed"] > position:
            raise CopyRequiredError(
                f"copy required: {name!r} is at {lsn_text(row['current'])} and its slot at "
                f"{lsn_text(row['confirmed'])}, the target at {lsn_text(position)}: one of them was restored to an "
                "earlier time"
            )
        return int(row["current"])

    def look(self) -> dict[str, Any]:
        """The slot and the source's WAL, as they are."""
        with contextlib.closing(self.endpoint.open_source(None)) as session, source_errors(self.endpoint.name):
            reason = "s.invalidation_reason" if self.identity.version >= 170_000 else "NULL::text"
            query = SQL["slot"].replace("invalidation_reason", reason, 1)
            row: dict[str, Any] | None = session.execute(query.encode(), {"slot": self.slot}).fetchone()
        assert row is not None  # noqa: S101 - an outer join
        return row

    def warning(self, found: dict[str, Any]) -> str | None:
        """What is wrong with the slot, before the source loses changes or its disk is full. found: as look returns."""
        name, kept, safe = self.endpoint.name, found["wal_kept"] or 0, found["safe_wal_size"]
        if found["slot_name"] is None or found["wal_status"] == "lost":
            return "copy required: the slot is lost"
        if found["wal_status"] == "unreserved" or (safe is not None and safe < kept / 2):
            return f"{name!r} is about to remove WAL that the slot needs: run lakefork follow run now"
        if kept > WAL_WARNING_BYTES:
            return (
                f"{name!r} keeps {kept / 2**30:,.1f} GB of WAL for the slot: run lakefork follow run, or stop following"
            )
        return None

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def statement_to_add(self, relation: Relation, column: str) -> str:
        """How a column of the source is added to the target's table."""
        with contextlib.closing(self.endpoint.open_source(None)) as session, source_errors(self.endpoint.name):
            row = session.execute(
                "SELECT format_type(a.atttypid, a.atttypmod) AS type FROM pg_attribute a "
                "WHERE a.attrelid = %s AND a.attname = %s",
                (relation.oid, column),
            ).fetchone()
        kind = row["type"] if row else "its type"
        return f"ALTER TABLE {quote(relation.namespace)}.{quote(relation.name)} ADD COLUMN {quote(column)} {kind}"


def require_followable(session: Session, name: str, tables: Sequence[int], *, full_identity: bool) -> None:
    """Raises the first reason why changes of these tables cannot be followed."""
    row: dict[str, Any] = session.execute(SQL["follow_needs"]).fetchone() or {}
    if row["wal_level"] != "logical":
        raise SetupError(f"{name!r} has wal_level {row['wal_level']}: set wal_level = logical, and restart it")
    if not row["may_replicate"]:
        raise SetupError(
            f"the role of connection {name!r} may not replicate: ALTER ROLE {quote(row['role'])} REPLICATION"
        )
    for what, free in (("replication_slots", row["free_slots"]), ("wal_senders", row["free_senders"])):
        if free < 1:
            raise SetupError(f"{name!r} has no free one of its max_{what}: raise the setting, or drop one")
    for table in session.execute(SQL["unfollowable"], {"oids": list(tables)}):
        if table["reason"] == "unlogged":
            raise SetupError(
                f"{table['name']} is unlogged, and its changes cannot be followed: exclude it, or "
                f"ALTER TABLE {table['name']} SET LOGGED"
            )
        if not table["is_owned"]:
            raise SetupError(
                f"the role of connection {name!r} does not own {table['name']}, and only the owner can publish its "
                "changes"
            )
        if table["reason"] == "identity" and not full_identity:
            raise SetupError(
                f"{table['name']} has no primary key and no replica identity, so that its updates and deletes cannot "
                "be followed: exclude it, or set replica_identity_full"
            )


def give_full_identity(session: Session, tables: Sequence[int]) -> None:
    """Tables without a key send whole old rows from now on."""
    for table in session.execute(SQL["unfollowable"], {"oids": list(tables)}).fetchall():
        if table["reason"] == "identity":
            session.execute(f"ALTER TABLE {table['name']} REPLICA IDENTITY FULL".encode())
