"""Tokens that are issued here: made, listed and revoked. Only their ids are stored."""

import datetime
import uuid
from typing import Any

import jwt

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection
from lakefork.database_errors import all_domain_errors
from lakefork.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from lakefork.model.durations import seconds_of
from lakefork.queries import load
from lakefork.sql.session import Role, check_user_id

ISSUER = AUDIENCE = "lakefork"
ALGORITHM = "HS256"
LONGEST_SECONDS = 366 * 86_400
_SQL = load(__package__)


def create_token(
    connection: Connection, key: str, catalog: str, user: str, role: str | None, expires_in: str, author: str
) -> tuple[str, dict[str, Any]]:
    """A token, and what is known of it. A user whom system.users does not know is added if the role is above user.

    The role is the highest that the token gives; what it gives is never above that of system.users.
    """
    check_user_id(user)
    seconds = seconds_of(expires_in, "--expires-in")
    if not 0 < seconds <= LONGEST_SECONDS:
        raise InvalidInputError("--expires-in is more than 0 and at most 366d")
    with all_domain_errors(), connection.transaction():
        found = find_catalog(connection, catalog)
        highest = _highest_role(connection, found.catalog_id, catalog, user, role)
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        facts = {
            "token_id": uuid.uuid4(), "catalog_id": found.catalog_id, "catalog": catalog, "user_id": user,
            "role": highest.name.lower(), "created_by": author,
            "expires_at": now + datetime.timedelta(seconds=int(seconds)),
        }  # fmt: skip
        connection.execute(_SQL["register_token"], facts)
        connection.execute(_SQL["forget_tokens"])
    claims = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": user, "catalog": catalog, "role": facts["role"],
        "jti": str(facts["token_id"]), "iat": now, "exp": facts["expires_at"],
    }  # fmt: skip
    return jwt.encode(claims, key, algorithm=ALGORITHM), facts


def _highest_role(connection: Connection, catalog_id: int, catalog: str, user: str, asked: str | None) -> Role:
    row = connection.execute(
        "SELECT role, deleted_at FROM system.users WHERE catalog_name = %s AND user_id = %s", (catalog, user)
    ).fetchone()
    if row and row["deleted_at"]:
        raise PermissionDeniedError(f"user {user!r} of catalog {catalog} was deleted")
    known = Role.named(row["role"]) if row else Role.USER
    role = Role.named(asked) if asked else known
    if row is None and role > Role.USER:
        connection.execute(
            "INSERT INTO lakefork.app_user (catalog_id, user_id, role) VALUES (%s, %s, %s)",
            (catalog_id, user, role.name.lower()),
        )
    return role


def list_tokens(connection: Connection) -> list[dict[str, Any]]:
    with all_domain_errors():
        return connection.execute(_SQL["list_tokens"]).fetchall()


def revoke_tokens(
    connection: Connection, token_id: str | None, catalog: str | None = None, user: str | None = None
) -> list[str]:
    """One token, or all of a user; returns the ids of those that were good until now."""
    given = {"token_id": _uuid(token_id) if token_id else None, "catalog": catalog, "user": user}
    with all_domain_errors():
        revoked = [str(row["token_id"]) for row in connection.execute(_SQL["revoke_token"], given)]
    if not revoked:
        raise NotFoundError("there is no such token that could be revoked; `lakefork token list` shows them")
    return revoked


def _uuid(text: str) -> uuid.UUID:
    """The id, or a whole token, whose id is in it."""
    try:
        if text.count(".") == 2:
            text = str(jwt.decode(text, options={"verify_signature": False}).get("jti"))
        return uuid.UUID(text)
    except (ValueError, jwt.PyJWTError):
        raise InvalidInputError("this is neither the id of a token nor a token") from None
