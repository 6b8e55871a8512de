"""One server for most tests, with limits that tests can reach; each test works in a namespace of its own."""

import json
from collections.abc import Callable, Iterator

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.algorithms import RSAAlgorithm

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.settings import Settings
from support.api_server import ApiServer, running_server
from support.sql_lake import SqlLake, new_name, open_lake

LIMITS = {
    "LAKEFORK_SERVER__MAX_BODY_KB": "1200",
    "LAKEFORK_SERVER__BODY_SECONDS": "1",
    "LAKEFORK_SERVER__SEND_SECONDS": "1",
    "LAKEFORK_SERVER__REQUEST_SECONDS": "6",
    "LAKEFORK_SERVER__STATEMENTS": "4",
    "LAKEFORK_SERVER__STATEMENTS_PER_USER": "2",
    "LAKEFORK_SERVER__WAITING_PER_USER": "3",
    "LAKEFORK_SERVER__MAX_ROWS": "200000",
    "LAKEFORK_SERVER__FAILED_TOKENS_PER_MINUTE": "100000",
    "LAKEFORK_SERVER__CORS_ORIGINS": '["https://app.example"]',
    "LAKEFORK_SERVER__ISSUER": "https://login.example",
    "LAKEFORK_SERVER__ISSUER_AUDIENCE": "lake",
    "LAKEFORK_SQL__STATEMENT_TIMEOUT_SECONDS": "3",
    "LAKEFORK_SQL__WORKERS": "4",
}


@pytest.fixture(scope="session")
def issuer_key() -> RSAPrivateKey:
    """With which somebody else signs tokens that the server takes."""
    return generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="session")
def shared(
    postgres: str,
    template: str,
    make_settings: Callable[..., Settings],
    tmp_path_factory: pytest.TempPathFactory,
    issuer_key: RSAPrivateKey,
) -> Iterator[tuple[ApiServer, SqlLake]]:
    directory = tmp_path_factory.mktemp("api")
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE api TEMPLATE {template} STRATEGY FILE_COPY")
    dsn = f"{postgres.rpartition('/')[0]}/api"
    with connect(dsn) as connection:
        create_catalog(connection, "rival", str(directory / "rival"))
    jwks = directory / "jwks.json"
    public = json.loads(RSAAlgorithm.to_jwk(issuer_key.public_key()))
    jwks.write_text(json.dumps({"keys": [{**public, "kid": "one", "alg": "RS256", "use": "sig"}]}))
    settings = make_settings()
    environment = {**LIMITS, "LAKEFORK_SERVER__ISSUER_JWKS_FILE": str(jwks)}
    with (
        open_lake(dsn, directory, settings) as lake,
        running_server(settings, dsn, directory, environment) as server,
    ):
        yield server, lake


@pytest.fixture(scope="session")
def api(shared: tuple[ApiServer, SqlLake]) -> ApiServer:
    return shared[0]


@pytest.fixture(scope="session")
def lake(shared: tuple[ApiServer, SqlLake]) -> SqlLake:
    """The same catalog through an engine of the tests' own."""
    return shared[1]


@pytest.fixture
def ns(lake: SqlLake) -> str:
    name = new_name("api")
    lake.run(f"CREATE NAMESPACE {name}; CREATE USER TABLE {name}.mine (id BIGINT PRIMARY KEY, v STRING)")
    return name


@pytest.fixture(scope="session")
def alice(api: ApiServer) -> str:
    """A token of role user."""
    return api.token("alice")


@pytest.fixture(scope="session")
def admin(api: ApiServer) -> str:
    return api.token("root", "admin")
