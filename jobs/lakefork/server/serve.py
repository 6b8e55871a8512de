"""`lakefork serve`: checks what is needed, then runs the worker processes until it is told to stop."""

import logging
import os
import resource
import socket
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

import uvicorn
from uvicorn.supervisors import Multiprocess

from lakefork.catalog.connection import connect
from lakefork.errors import SetupError
from lakefork.server.app import METRICS_DIRECTORY
from lakefork.server.auth import Verifier
from lakefork.server.keys import token_key
from lakefork.server.protocol import LimitedProtocol
from lakefork.settings import Settings

OPEN_FILES = 8_192  # wanted; fewer are said
CLOSE_SECONDS = 15
MESSAGE_BYTES = 1 << 20  # of one message of a client


def serve(settings: Settings, dsn: str, host: str, port: int, workers: int, say: Callable[[str], None]) -> int:
    """Returns when it was stopped by SIGTERM or SIGINT and all workers have ended."""
    check(settings, dsn)
    listening = _bind(host, port)
    _raise_open_files(say)
    server = settings.server
    with listening, tempfile.TemporaryDirectory(prefix="lakefork-serve-") as directory:
        os.environ["LAKEFORK_DSN"] = dsn
        os.environ[METRICS_DIRECTORY] = directory
        config = uvicorn.Config(
            "lakefork.server.app:create_app", factory=True, http=LimitedProtocol, loop="uvloop", lifespan="on",
            workers=workers, log_config=None, log_level="warning", access_log=False, server_header=False,
            timeout_keep_alive=server.keep_alive_seconds, timeout_graceful_shutdown=server.stop_seconds,
            backlog=4_096, ws="websockets-sansio", ws_max_size=MESSAGE_BYTES, ws_max_queue=16,
            proxy_headers=bool(server.trusted_proxies), forwarded_allow_ips=server.trusted_proxies,
            ssl_certfile=server.tls_certificate or None, ssl_keyfile=server.tls_key or None,
        )  # fmt: skip
        say(f"Lakefork API: {address(settings, listening)} ({workers} worker{'' if workers == 1 else 's'})")
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        Multiprocess(config, [listening]).run()
    say("stopped")
    return 0


def address(settings: Settings, listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{'https' if settings.server.tls_certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def check(settings: Settings, dsn: str) -> None:
    """Raises with one sentence about the first thing that is missing or wrong."""
    server = settings.server
    if server.statements > settings.sql.connections:
        raise SetupError(
            "setting server.statements is more than sql.connections: statements would wait for connections to Postgres"
        )
    if server.statements_per_user > server.statements:
        raise SetupError("setting server.statements_per_user is more than server.statements")
    if bool(server.tls_certificate) != bool(server.tls_key):
        raise SetupError("settings server.tls_certificate and server.tls_key belong together: set both, or none")
    if server.tls_certificate:
        _check_tls(server.tls_certificate, server.tls_key)
    Verifier(server, token_key(settings))
    connect(dsn).close()


def _check_tls(certificate: str, key: str) -> None:
    for setting, name in (("tls_certificate", certificate), ("tls_key", key)):
        if not os.access(name, os.R_OK) or not Path(name).is_file():
            raise SetupError(f"setting server.{setting}: {name} cannot be read")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise SetupError(
            f"settings server.tls_certificate and server.tls_key are no certificate and its key: {error}"
        ) from None


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
    except OSError as error:
        raise SetupError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another --host or --port"
        ) from None
    listening.set_inheritable(True)
    return listening


def _raise_open_files(say: Callable[[str], None]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < OPEN_FILES:
        say(f"only {wanted} files may be open at once, which limits connections (ulimit -n)")
