"""LAKEFORK_HOME: generated passwords, kept ports, data and logs of the embedded stack."""

import json
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

from lakefork.errors import SetupError


def prepare_home(home: Path, min_free_mb: int) -> Path:
    """Makes the directory private, or raises one sentence why it cannot be used."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        raise SetupError(
            f"LAKEFORK_HOME {home} cannot be written ({error.strerror}): set it to a directory that you own"
        ) from error
    free_mb = shutil.disk_usage(home).free // 2**20
    if free_mb < min_free_mb:
        raise SetupError(
            f"only {free_mb} MB are free on the disk of LAKEFORK_HOME {home}, and {min_free_mb} MB are needed: "
            "free some, or set LAKEFORK_HOME to another disk"
        )
    return home


def load_or_create_secret(home: Path, name: str) -> str:
    """Returns a password that is generated once and readable only by its owner."""
    path = home / "secrets" / name
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Replaces a file atomically; only its owner can read it, at any time."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.touch(mode=0o600)
    scratch.write_text(text)
    scratch.replace(path)


def load_or_choose_port(home: Path, name: str, configured: int) -> int:
    """Returns the configured port, or a free one that is kept for later starts; refuses a port in use."""
    path = home / "ports.json"
    ports = json.loads(path.read_text()) if path.exists() else {}
    port = configured or ports.get(name)
    if port is None:
        port = _free_port()
    elif not _is_free(port):
        raise SetupError(
            f"port {port} for {name} is in use by another program: stop it, or set LAKEFORK_{name.upper()}__PORT"
        )
    write_private(path, json.dumps({**ports, name: port}))
    return int(port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
