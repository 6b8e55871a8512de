"""Who presents a token: its signature and claims here, whether it and its user are still good in Postgres."""

import json
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jwt

from lakefork.catalog.connection import Connection, open_connection, shut
from lakefork.database_errors import all_domain_errors
from lakefork.errors import DatabaseError, LakeforkError, SetupError
from lakefork.pools import Pool
from lakefork.queries import load
from lakefork.server.tokens import ALGORITHM, AUDIENCE, ISSUER
from lakefork.settings import ServerSettings
from lakefork.sql.session import Role, check_user_id
from lakefork.watchdog import time_limit

LONGEST_TOKEN = 8_192
KEPT = 10_000
LEEWAY_SECONDS = 5
KNOWN_SECONDS = 1.0  # for so long a token that was revoked may still be taken
ANSWER_SECONDS = 10.0  # for Postgres
_SQL = load(__package__)


class BadTokenError(Exception):
    """The reason is for the log; whoever presented it learns nothing."""


@dataclass(frozen=True)
class Claims:
    """What a token with a good signature says; role is the highest that it gives."""

    catalog: str
    user: str
    role: Role
    expires_at: float
    token_id: uuid.UUID | None = None  # None: another issuer's


@dataclass(frozen=True)
class Identity:
    """Who it is now."""

    catalog_id: int
    catalog: str
    user: str
    role: Role


class Verifier:
    """Checks signatures and claims; needs no database. Tokens that were good are remembered until they expire."""

    def __init__(self, settings: ServerSettings, key: str) -> None:
        self._settings, self._key = settings, key
        self._issuer = _Issuer(settings) if settings.issuer else None
        self._known: OrderedDict[str, Claims] = OrderedDict()

    def verify(self, token: str) -> Claims:
        claims = self._known.get(token)
        if claims is None:
            claims = self._claims(token)
            self._known[token] = claims
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        if claims.expires_at + LEEWAY_SECONDS < time.time():
            self._known.pop(token, None)
            raise BadTokenError("expired")
        return claims

    def _claims(self, token: str) -> Claims:
        if len(token) > LONGEST_TOKEN:
            raise BadTokenError("too long")
        try:
            unverified = jwt.decode(token, options={"verify_signature": False})
            if self._issuer is not None and unverified.get("iss") == self._settings.issuer:
                return self._issuer.claims(token)
            return self._own(token)
        except BadTokenError:
            raise
        except (jwt.PyJWTError, LakeforkError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadTokenError(f"{type(error).__name__}: {error}") from None

    def _own(self, token: str) -> Claims:
        found = jwt.decode(
            token, self._key, algorithms=[ALGORITHM], issuer=ISSUER, audience=AUDIENCE, leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub", "jti"]},
        )  # fmt: skip
        return Claims(
            _text(found, "catalog"), check_user_id(_text(found, "sub")), Role.named(_text(found, "role")),
            float(found["exp"]), uuid.UUID(_text(found, "jti")),
        )  # fmt: skip


class _Issuer:
    """Somebody else who issues tokens, as the settings describe. Algorithms are pinned by what the key is."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._keys: list[jwt.PyJWK] = []
        self._read_at = 0.0
        if bool(settings.issuer_jwks_file) == bool(settings.issuer_secret):
            raise SetupError("setting server.issuer needs either server.issuer_jwks_file or server.issuer_secret")
        if not settings.issuer_audience:
            raise SetupError("setting server.issuer needs server.issuer_audience: who the tokens are for")
        if settings.issuer_jwks_file:
            if any(name.upper().startswith("HS") or name.lower() == "none" for name in settings.issuer_algorithms):
                raise SetupError("setting server.issuer_algorithms names one that does not fit public keys")
            self._read_keys()

    def claims(self, token: str) -> Claims:
        settings = self._settings
        key, algorithms = self._key(token)
        found = jwt.decode(
            token, key, algorithms=algorithms, issuer=settings.issuer, audience=settings.issuer_audience,
            leeway=LEEWAY_SECONDS, options={"require": ["exp", "iss", "aud"]},
        )  # fmt: skip
        role = (
            Role.named(_text(found, settings.issuer_role_claim)) if settings.issuer_role_claim in found else Role.USER
        )
        user = check_user_id(_text(found, settings.issuer_user_claim))
        return Claims(_text(found, settings.issuer_catalog_claim), user, min(role, Role.ADMIN), float(found["exp"]))

    def _key(self, token: str) -> tuple[Any, list[str]]:
        if self._settings.issuer_secret:
            return self._settings.issuer_secret, [ALGORITHM]
        header = jwt.get_unverified_header(token)
        if Path(self._settings.issuer_jwks_file).stat().st_mtime != self._read_at:
            self._read_keys()
        for key in self._keys:
            if header.get("kid") in (None, key.key_id) and header.get("alg") == key.algorithm_name:
                return key, [name for name in self._settings.issuer_algorithms if name == key.algorithm_name]
        raise BadTokenError("no key of the issuer fits")

    def _read_keys(self) -> None:
        path = Path(self._settings.issuer_jwks_file)
        try:
            keys = jwt.PyJWKSet.from_dict(json.loads(path.read_text())).keys
            self._read_at = path.stat().st_mtime
        except (OSError, ValueError, jwt.PyJWTError) as error:
            raise SetupError(
                f"setting server.issuer_jwks_file: {path} cannot be read as a JWKS file: {error}"
            ) from None
        self._keys = [key for key in keys if key.key_type != "oct"]


def _text(found: dict[str, Any], claim: str) -> str:
    value = found.get(claim)
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadTokenError(f"claim {claim} is missing or no text")
    value.encode()
    return value


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    identity: Identity | None = None
    problem: str | None = None  # of Postgres, so that those who wait do not find it out one after another
    until: float = 0.0


class Identities:
    """Asks Postgres, at most once a second for each token, whether it and its user are good."""

    def __init__(self, dsn: str) -> None:
        options = f"-c statement_timeout={int(ANSWER_SECONDS * 1000)}"
        self.pool: Pool[Connection] = Pool(
            lambda: open_connection(dsn, autocommit=True, options=options), lambda one: not one.closed, 4, 10,
            lambda one: time_limit(time.monotonic() + ANSWER_SECONDS + 2, partial(shut, one)),
        )  # fmt: skip
        self._entries: OrderedDict[Claims, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def identify(self, claims: Claims) -> Identity:
        entry = self._entry(claims)
        if entry.until < time.monotonic():
            with entry.lock:
                if entry.until < time.monotonic():
                    self._ask(entry, claims)
        if entry.problem is not None:
            raise DatabaseError(entry.problem)
        if entry.identity is None:
            raise BadTokenError("revoked, or its user or catalog is gone")
        return entry.identity

    def read_now(self, claims: Claims) -> Identity:
        """Asks Postgres, whatever was known."""
        identity = self._read(claims)
        if identity is None:
            raise BadTokenError("revoked, or its user or catalog is gone")
        return identity

    def close(self) -> None:
        self.pool.close()

    def _ask(self, entry: _Entry, claims: Claims) -> None:
        try:
            entry.identity, entry.problem = self._read(claims), None
        except DatabaseError as error:
            entry.problem = str(error)
        entry.until = time.monotonic() + KNOWN_SECONDS

    def _entry(self, claims: Claims) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(claims, _Entry())
            if len(self._entries) > KEPT:
                self._entries.popitem(last=False)
            return entry

    def _read(self, claims: Claims) -> Identity | None:
        try:
            return self._read_once(claims)
        except DatabaseError:
            self.pool.close_idle()  # after a restart of Postgres none of them is any good
            return self._read_once(claims)

    def _read_once(self, claims: Claims) -> Identity | None:
        given = {**vars(claims), "issued_here": claims.token_id is not None}
        with all_domain_errors(), self.pool.connection() as connection:
            row = connection.execute(_SQL["session"], given).fetchone()
        if row is None:
            return None
        return Identity(row["catalog_id"], claims.catalog, claims.user, min(claims.role, Role.named(row["role"])))


class FailedTries:
    """How many bad tokens came from an address within a minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[str, int] = {}
        self._minute = 0

    def is_beyond(self, address: str) -> bool:
        """Counts one more."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute or len(self._counts) > KEPT:
            self._counts, self._minute = {}, minute
        self._counts[address] = self._counts.get(address, 0) + 1
        return self._counts[address] > self._most
