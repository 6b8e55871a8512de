"""Bearer tokens: who they are for, how long they are good, and that whatever is wrong with one is answered alike."""

import base64
import datetime
import hashlib
import hmac
import json
import os
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lakefork.catalog.catalogs import create_catalog, drop_catalog, find_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import LakeforkError, NotFoundError, SetupError
from lakefork.server.auth import BadTokenError, FailedTries, Verifier
from lakefork.server.keys import token_key
from lakefork.server.tokens import create_token, list_tokens, revoke_tokens
from lakefork.settings import ServerSettings, Settings
from support.api_server import ApiServer
from support.sql_lake import SqlLake, new_name

REFUSED = {
    "status": "error", "results": [],
    "error": {"code": "unauthenticated", "message": "the token is missing, malformed, expired or revoked"},
}  # fmt: skip


def refused(api: ApiServer, token: str) -> bool:
    answer = api.post("SELECT 1", token)
    assert answer.status_code in (200, 401), answer.text
    if answer.status_code == 401:
        assert answer.json() == REFUSED
    return answer.status_code == 401


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    usual = {
        "iss": "lakefork", "aud": "lakefork", "sub": "alice", "catalog": "main", "role": "user", "jti": str(uuid.uuid4()),
        "iat": now, "exp": now + 600,
    }  # fmt: skip
    return {name: value for name, value in {**usual, **changes}.items() if value is not None}


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_tricks_with_algorithms_and_claims(api: ApiServer, alice: str, issuer_key: RSAPrivateKey) -> None:
    head, body, signature = alice.split(".")
    known = json.loads(base64.urlsafe_b64decode(body + "=="))
    key = token_key(api.settings)
    public = issuer_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "typ": "JWT"}
    tampered = [
        "", "x", "a.b.c", alice + "x", alice[:-3], f"{head}.{body}.", f"{head}.{body}", alice * 20, "é" * 10, "." * 9000,
        f"{part({'alg': 'none'})}.{body}.", f"{part({'alg': 'None', 'typ': 'JWT'})}.{body}.{signature}",
        f"{head}.{part({**known, 'role': 'admin'})}.{signature}", f"{head}.{part([])}.{signature}",
        f"{part({'alg': 'HS256', 'jwk': {'kty': 'oct', 'k': 'eA'}})}.{body}.{signature}",
        jwt.encode(claims(jti=known["jti"]), "x" * 40, algorithm="HS256"),
        jwt.encode(claims(jti=known["jti"]), key * 2, algorithm="HS512"),
        jwt.encode(claims(jti=known["jti"]), issuer_key, algorithm="RS256"),
        jwt.encode(claims(), key, algorithm="HS256"),  # an id that was never registered
    ]  # fmt: skip
    tampered += [jwt.encode(claims(**{"jti": known["jti"], name: None}), key, algorithm="HS256") for name in claims()]
    wrong = {
        "iss": "other", "aud": "other", "sub": 7, "catalog": "nowhere", "role": "root", "jti": "x", "exp": int(time.time()) - 60,
        "iat": int(time.time()) + 600,
    }  # fmt: skip
    tampered += [
        jwt.encode(claims(**{"jti": known["jti"], name: value}), key, algorithm="HS256", headers=header)
        for name, value in wrong.items()
        if name not in ("iss", "sub")
    ]
    tampered += [
        jwt.encode(claims(jti=known["jti"], sub=other), key, algorithm="HS256") for other in ("bob", "x" * 501, "a\0b")
    ]
    signed = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'one'})}.{part({**claims(), 'iss': 'https://login.example', 'aud': 'lake'})}"
    mac = base64.urlsafe_b64encode(hmac.new(public, signed.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()
    tampered.append(f"{signed}.{mac}")  # the public key as a secret
    for token in tampered:
        assert refused(api, token), token
    assert not refused(api, alice)


def test_the_header_must_be_one_bearer_token(api: ApiServer, alice: str) -> None:
    for value in (alice, f"Basic {alice}", "Bearer", f"Bearer{alice}", f"Token {alice}"):
        answer = api.http.post("/api/sql", json={"sql": "SELECT 1"}, headers={"Authorization": value})
        assert (answer.status_code, answer.json()) == (401, REFUSED)
    two = [("Authorization", f"Bearer {alice}"), ("Authorization", f"Bearer {alice}")]
    assert api.http.post("/api/sql", json={"sql": "SELECT 1"}, headers=two).status_code == 401
    assert (
        api.http.post("/api/sql", json={"sql": "SELECT 1"}, headers={"Authorization": f"bearer {alice}"}).status_code
        == 200
    )
    assert api.http.post(f"/api/sql?token={alice}&access_token={alice}", json={"sql": "SELECT 1"}).status_code == 401


def wait_until_refused(api: ApiServer, token: str) -> None:
    deadline = time.monotonic() + 2
    while not refused(api, token):
        assert time.monotonic() < deadline, "still good after two seconds"
        time.sleep(0.05)


def test_a_revoked_token_ends_within_a_second_and_others_do_not(api: ApiServer) -> None:
    one, other, third = api.token("revoked"), api.token("revoked"), api.token("kept")
    assert not refused(api, one)
    with connect(api.dsn) as connection:
        (revoked,) = revoke_tokens(connection, one)
        wait_until_refused(api, one)
        assert not refused(api, other)
        assert not refused(api, third)
        known = {str(row["token_id"]): row for row in list_tokens(connection)}
        assert known[revoked]["revoked_at"] is not None
        assert known[revoked]["user"] == "revoked"
        with pytest.raises(NotFoundError):
            revoke_tokens(connection, revoked)
        assert len(revoke_tokens(connection, None, "main", "revoked")) == 1
    wait_until_refused(api, other)
    assert not refused(api, third)


def test_an_expired_token(api: ApiServer) -> None:
    token = api.token("brief", expires_in="1s")
    assert not refused(api, token)
    deadline = time.monotonic() + 10  # clocks may differ by some seconds
    while not refused(api, token):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_deleted_user_and_a_dropped_catalog(api: ApiServer, lake: SqlLake, tmp_path: Path) -> None:
    user, name = new_name("gone"), new_name("dropped")
    lake.run("INSERT INTO system.users (user_id) VALUES (?)", user)
    token = api.token(user)
    assert not refused(api, token)
    lake.run("DELETE FROM system.users WHERE user_id = ?", user)
    wait_until_refused(api, token)
    with pytest.raises(LakeforkError, match="was deleted"):
        api.token(user)
    with connect(api.dsn) as connection:
        catalog = create_catalog(connection, name, str(tmp_path / "one"))
        token = api.token("alice", catalog=name)
        assert not refused(api, token)
        drop_catalog(connection, catalog)
        wait_until_refused(api, token)
        create_catalog(connection, name, str(tmp_path / "two"))  # another one of the same name
        time.sleep(1.1)
        assert refused(api, token)
        drop_catalog(connection, find_catalog(connection, name))


def test_a_token_shows_its_own_catalog_only(api: ApiServer, ns: str, alice: str) -> None:
    rival = api.token("alice", "admin", catalog="rival")
    assert api.post(f"SELECT * FROM {ns}.mine", alice).status_code == 200
    answer = api.post(f"SELECT * FROM {ns}.mine", rival)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_found")
    assert ns not in api.post("SHOW NAMESPACES", rival).text
    assert api.post("SELECT catalog_name FROM system.catalogs", rival).json()["results"][0]["rows"] == [["rival"]]


def test_the_role_is_that_of_system_users_and_never_above_the_tokens(api: ApiServer, lake: SqlLake) -> None:
    user = new_name("promoted")
    lake.run("INSERT INTO system.users (user_id, role) VALUES (?, 'user')", user)
    weak, strong = api.token(user, "user"), api.token(user, "admin")

    def makes_namespaces(token: str) -> bool:
        return api.post(f"CREATE NAMESPACE {new_name('n')}", token).status_code == 200

    assert [makes_namespaces(weak), makes_namespaces(strong)] == [False, False]
    lake.run("UPDATE system.users SET role = 'admin' WHERE user_id = ?", user)
    time.sleep(1.1)
    assert [makes_namespaces(weak), makes_namespaces(strong)] == [False, True]
    lake.run("UPDATE system.users SET role = 'user' WHERE user_id = ?", user)
    time.sleep(1.1)
    assert [makes_namespaces(weak), makes_namespaces(strong)] == [False, False]


def test_last_login_is_seen_in_system_users(api: ApiServer, lake: SqlLake) -> None:
    user = new_name("seen")
    lake.run("INSERT INTO system.users (user_id) VALUES (?)", user)
    asked = "SELECT last_login FROM system.users WHERE user_id = ?"
    assert lake.rows(asked, user) == [(None,)]
    api.post("SELECT 1", api.token(user))
    ((seen,),) = lake.rows(asked, user)
    assert abs((datetime.datetime.now(datetime.UTC) - seen).total_seconds()) < 60


def test_tokens_of_another_issuer(api: ApiServer, lake: SqlLake, issuer_key: RSAPrivateKey) -> None:
    def foreign(key: Any = issuer_key, kid: str = "one", algorithm: str = "RS256", **changes: Any) -> str:
        now = int(time.time())
        given = {
            "iss": "https://login.example", "aud": "lake", "sub": "federated", "lakefork_catalog": "main", "exp": now + 600, **changes,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(given, key, algorithm=algorithm, headers={"kid": kid})

    assert not refused(api, foreign())
    assert not refused(api, foreign(lakefork_role="admin"))
    assert api.post("CREATE NAMESPACE theirs", foreign(lakefork_role="admin")).status_code == 403
    lake.run("INSERT INTO system.users (user_id, role) VALUES ('federated', 'service')")
    stranger = generate_private_key(public_exponent=65537, key_size=2048)
    bad = [
        foreign(stranger), foreign(kid="two"), foreign(aud="other"), foreign(aud=None), foreign(exp=1), foreign(exp=None),
        foreign(sub=None), foreign(lakefork_catalog=None), foreign(lakefork_catalog="nowhere"), foreign(lakefork_role="root"),
        foreign(iss="https://evil.example"), foreign(iss="lakefork", aud="lakefork"), foreign(algorithm="PS256"),
        foreign(token_key(api.settings), algorithm="HS256"),
    ]  # fmt: skip
    assert [refused(api, token) for token in bad] == [True] * len(bad)


def test_the_reasons_are_in_the_log_only(api: ApiServer, alice: str) -> None:
    request = f"bad-{uuid.uuid4().hex}"
    api.post("SELECT 1", alice[:-4] + "AAAA", headers={"X-Request-ID": request})
    deadline = time.monotonic() + 5
    while not (found := [line for line in api.log() if line.get("request") == request]):
        assert time.monotonic() < deadline
    assert "Signature" in found[0]["reason"]
    assert "user" not in found[0]


def test_failed_tries_of_an_address_are_limited() -> None:
    tries = FailedTries(3)
    assert [tries.is_beyond("1.2.3.4") for _ in range(5)] == [False, False, False, True, True]
    assert not tries.is_beyond("5.6.7.8")


def test_the_key_is_made_once_and_for_its_owner_only(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings()
    code = "import sys; from lakefork.server.keys import token_key; from lakefork.settings import load_settings; print(token_key(load_settings()))"
    environment = {**os.environ, "LAKEFORK_HOME": str(settings.home)}
    racing = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    keys = {process.communicate()[0].strip() for process in racing}
    assert keys == {token_key(settings)}
    path = settings.home / "secrets" / "token-key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["token-key"]
    path.chmod(0o640)
    with pytest.raises(SetupError, match="others can read"):
        token_key(settings)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(SetupError, match="holds no key"):
        token_key(settings)
    with pytest.raises(SetupError, match="fewer than 32"):
        token_key(make_settings(server=ServerSettings(token_key="x")))


@pytest.mark.parametrize(
    ("given", "about"),
    [
        ({}, "issuer_jwks_file or server.issuer_secret"), ({"issuer_secret": "x" * 40}, "issuer_audience"),
        ({"issuer_audience": "a", "issuer_jwks_file": "/nowhere"}, "JWKS file"),
        ({"issuer_audience": "a", "issuer_jwks_file": "/dev/null", "issuer_algorithms": ["HS256"]}, "does not fit public keys"),
    ],
)  # fmt: skip
def test_an_issuer_that_is_not_described_in_full_is_refused_at_start(given: dict[str, Any], about: str) -> None:
    with pytest.raises(SetupError, match=about):
        Verifier(ServerSettings(issuer="https://login.example", **given), "k" * 40)


def test_an_issuer_with_a_shared_secret() -> None:
    secret = "s" * 40
    verifier = Verifier(ServerSettings(issuer="them", issuer_audience="us", issuer_secret=secret), "k" * 40)
    given = {"iss": "them", "aud": "us", "sub": "eve", "lakefork_catalog": "main", "exp": time.time() + 60}
    assert verifier.verify(jwt.encode(given, secret, algorithm="HS256")).user == "eve"
    for key in ("k" * 40, "x" * 40):
        with pytest.raises(BadTokenError):
            verifier.verify(jwt.encode(given, key, algorithm="HS256"))


def test_create_adds_an_unknown_user_with_the_role_that_is_asked_for(api: ApiServer, lake: SqlLake) -> None:
    user = new_name("operator")
    with connect(api.dsn) as connection:
        _, facts = create_token(connection, token_key(api.settings), "main", user, "admin", "1h", "tests")
    assert facts["role"] == "admin"
    assert lake.rows("SELECT role FROM system.users WHERE user_id = ?", user) == [("admin",)]
    for expires_in in ("0s", "2y", "400d"):
        with pytest.raises(LakeforkError):
            api.token(user, expires_in=expires_in)
