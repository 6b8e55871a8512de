"""What the catalog remembers of a copy that is followed."""

from dataclasses import dataclass
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.errors import CopyRequiredError, InvalidInputError, NotFoundError
from lakefork.transfer.postgres_copy.state import Copy, find_copy

POSITION = "('0/0'::pg_lsn + %(position)s::numeric)::text"


@dataclass(frozen=True)
class Follow:
    copy: Copy
    status: str
    position: int

    @property
    def slot(self) -> str:
        assert self.copy.slot_name is not None  # noqa: S101 - it is followed
        return self.copy.slot_name


def follow_lease(copy_id: str) -> str:
    return f"follow/{copy_id}"


def begin_follow(connection: Connection, copy_id: str, lsn: str) -> None:
    """From the place of a new slot on."""
    connection.execute(
        "INSERT INTO lakefork.follow (copy_id, status, position) VALUES (%(copy_id)s, 'following', %(lsn)s) "
        "ON CONFLICT (copy_id) DO UPDATE SET position = excluded.position, status = 'following', error = NULL",
        {"copy_id": copy_id, "lsn": lsn},
    )


def find_follow(connection: Connection, copy_id: str) -> Follow:
    copy = find_copy(connection, copy_id)
    row = connection.execute(
        "SELECT status, (position::pg_lsn - '0/0'::pg_lsn)::bigint AS position FROM lakefork.follow WHERE copy_id = %s",
        (copy_id,),
    ).fetchone()
    if row is None or copy.slot_name is None:
        raise NotFoundError(f"copy {copy_id} is not followed: it was made without follow")
    return Follow(copy, row["status"], row["position"])


def require_following(follow: Follow) -> None:
    copy_id = follow.copy.copy_id
    if follow.status == "copy_required":
        raise CopyRequiredError(f"copy required: changes of the source of copy {copy_id} are lost, begin a new copy")
    if follow.status != "following":
        raise InvalidInputError(f"copy {copy_id} is not followed any longer: it was {follow.status.replace('_', ' ')}")
    if follow.copy.status != "completed":
        raise InvalidInputError(f"copy {copy_id} is {follow.copy.status}: its changes are applied when it is completed")


def followed_copies(connection: Connection) -> list[str]:
    """Those that a run without copy_id is about."""
    rows = connection.execute(
        "SELECT f.copy_id FROM lakefork.follow f JOIN lakefork.copy c USING (copy_id) "
        "WHERE f.status = 'following' AND c.status = 'completed' ORDER BY f.copy_id"
    )
    return [row["copy_id"] for row in rows]


def note_progress(connection: Connection, copy_id: str, **values: Any) -> None:
    """transactions and changes are added to what is there; columns by name else."""
    added = ("transactions", "changes")
    sets = [f"{name} = {f'{name} + ' if name in added else ''}%({name})s" for name in values if name != "position"]
    if "position" in values:
        sets.append(f"position = {POSITION}")
    connection.execute(
        f"UPDATE lakefork.follow SET {', '.join(sets)} WHERE copy_id = %(copy_id)s", {**values, "copy_id": copy_id}
    )
