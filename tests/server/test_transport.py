"""TLS, and whose word about a client's address counts."""

import datetime
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lakefork.errors import SetupError
from lakefork.server.serve import check
from lakefork.settings import ServerSettings, Settings
from support.api_server import ApiServer, running_server
from support.sql_lake import SqlLake
from support.waiting import wait_until

PROXY, STRANGER, CLAIMED = "127.0.0.9", "127.0.0.1", "203.0.113.7"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False).sign(key, hashes.SHA256())
    )  # fmt: skip
    files = directory / "server.pem", directory / "server.key"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@pytest.fixture(scope="module")
def tls(
    certificate: tuple[Path, Path],
    module_lake: SqlLake,
    make_settings: Callable[..., Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ApiServer]:
    environment = {
        "LAKEFORK_SERVER__TLS_CERTIFICATE": str(certificate[0]), "LAKEFORK_SERVER__TLS_KEY": str(certificate[1]),
        "LAKEFORK_SERVER__TRUSTED_PROXIES": f'["{PROXY}"]',
    }  # fmt: skip
    with running_server(make_settings(), module_lake.dsn, tmp_path_factory.mktemp("tls-server"), environment) as server:
        yield server


def test_requests_are_answered_over_tls_only(tls: ApiServer, certificate: tuple[Path, Path]) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(base_url=tls.url, verify=trusting, trust_env=False) as client:
        answer = client.post(
            "/api/sql", json={"sql": "SELECT 1 AS a"}, headers={"Authorization": f"Bearer {tls.token()}"}
        )
    assert tls.url.startswith("https://")
    assert answer.json()["results"][0]["rows"] == [[1]]
    assert b"200" not in tls.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 3)
    with socket.create_connection(tls.address) as plain, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.parametrize(("address", "logged"), [(PROXY, CLAIMED), (STRANGER, STRANGER)])
def test_forwarded_addresses_count_only_from_trusted_proxies(tls: ApiServer, address: str, logged: str) -> None:
    transport = httpx.HTTPTransport(verify=False, local_address=address)
    marker = f"from-{address}"
    with httpx.Client(base_url=tls.url, transport=transport, trust_env=False) as client:
        client.post("/api/sql", headers={"X-Forwarded-For": CLAIMED, "X-Request-ID": marker})
    lines = wait_until(lambda: [line for line in tls.log() if line.get("request") == marker])
    assert lines[0]["client"] == logged


def test_a_certificate_without_its_key_is_refused_at_start(
    certificate: tuple[Path, Path], make_settings: Callable[..., Settings], dsn: str
) -> None:
    pem, key = map(str, certificate)
    for given, about in (
        ({"tls_certificate": pem}, "set both, or none"), ({"tls_certificate": pem, "tls_key": pem}, "no certificate and its key"),
        ({"tls_certificate": pem, "tls_key": key + "x"}, "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(SetupError, match=about):
            check(make_settings(server=ServerSettings(**given)), dsn)
