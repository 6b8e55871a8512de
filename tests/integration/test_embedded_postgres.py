"""The embedded Postgres: private, on loopback only, and back after a kill −9."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from lake import add_file, files_at, make_catalog, make_table, rows_of
from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded import home as home_module
from lakefork.embedded.home import prepare_home
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.errors import SetupError
from lakefork.settings import PostgresSettings, Settings


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(postgres=PostgresSettings(shared_buffers="32MB", max_connections=30))


@pytest.fixture
def server(settings: Settings) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(settings)
    server.start()
    yield server
    server.stop()


def test_it_listens_on_loopback_only_with_a_password(server: EmbeddedPostgres, settings: Settings) -> None:
    url = server.url()
    with psycopg.connect(url) as connection:
        shown = {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in (
            "listen_addresses", "unix_socket_directories", "data_checksums", "password_encryption", "fsync")}  # fmt: skip
    assert shown == {
        "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "data_checksums": "on",
        "password_encryption": "scram-sha-256", "fsync": "on",
    }  # fmt: skip
    listening = {
        c.laddr.ip for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == _port(url)
    }
    assert listening == {"127.0.0.1"}
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url.replace(url.split(":")[2].split("@")[0], "wrong"))
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700
    secrets = list((settings.home / "secrets").iterdir())
    assert secrets and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    hba = [
        line
        for line in (settings.home / "postgres/data/pg_hba.conf").read_text().splitlines()
        if line and line[0] != "#"
    ]
    assert all(line.split()[-1] == "scram-sha-256" for line in hba)


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])


def test_starts_and_stops_can_be_repeated_and_keep_port_and_password(server: EmbeddedPostgres) -> None:
    url = server.url()
    assert server.start() == url
    assert server.stop() and not server.stop()
    with pytest.raises(SetupError, match="not running: start it with `lakefork db start`"):
        server.url()
    assert server.start() == url


def test_starts_at_once_make_one_server(settings: Settings) -> None:
    with ThreadPoolExecutor(3) as pool:
        urls = set(pool.map(lambda _: EmbeddedPostgres(settings).start(), range(3)))
    assert len(urls) == 1
    EmbeddedPostgres(settings).stop()


def test_what_was_committed_survives_a_kill(server: EmbeddedPostgres, settings: Settings) -> None:
    with connect(server.url(), check_version=False) as connection:
        init_catalog(connection)
        table = make_table(connection, make_catalog(connection))
        for number in range(20):
            add_file(connection, table, f"batch-{number}")
        postmaster = int((settings.home / "postgres/data/postmaster.pid").read_text().splitlines()[0])
        family = [psutil.Process(postmaster), *psutil.Process(postmaster).children(recursive=True)]
        for process in family:
            os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs(family, timeout=10)
    url = server.start()
    with connect(url) as connection:
        assert files_at(connection, table) == [f"batch-{number}" for number in range(20)]
        assert add_file(connection, table, "after").first_file_id == 20
        assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root has capabilities to give up"
)
@pytest.mark.parametrize("missing", ["-dac_read_search", "-dac_read_search,-dac_override"])
def test_root_with_fewer_capabilities_as_in_containers(missing: str, tmp_path: Path) -> None:
    lakefork = [str(Path(sys.executable).parent / "lakefork"), "db"]
    limited = ["setpriv", f"--bounding-set={missing}", f"--inh-caps={missing}", *lakefork, "start"]
    environment = {**os.environ, "LAKEFORK_HOME": str(tmp_path / "home")}
    started = subprocess.run(limited, env=environment, capture_output=True, text=True)
    subprocess.run([*lakefork, "stop"], env=environment, capture_output=True)
    if "dac_override" in missing:
        assert started.stderr == (
            "lakefork: Postgres does not run as root, and this root cannot hand it on: use another user, or set LAKEFORK_DSN\n"
        )
    else:
        assert started.returncode == 0, started.stderr


def test_a_taken_port_is_one_clear_line(settings: Settings) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = settings.model_copy(update={"postgres": PostgresSettings(port=port)})
        with pytest.raises(SetupError, match=f"port {port} for postgres is taken .* set LAKEFORK_POSTGRES__PORT"):
            EmbeddedPostgres(taken).start()


def test_an_unwritable_home_is_one_clear_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SetupError, match=f"LAKEFORK_HOME {blocked}/home cannot be written"):
        prepare_home(blocked / "home", 0)


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = home_module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(home_module.shutil, "disk_usage", lambda _: usage._replace(free=100 * 2**20))
    with pytest.raises(SetupError, match=r"only 100 MB are free .* and 500 MB are needed"):
        prepare_home(tmp_path / "home", 500)


def test_an_unreachable_server_is_one_clear_line_without_the_password() -> None:
    with pytest.raises(SetupError) as caught:
        connect("postgresql://someone:hunter2@127.0.0.1:1/db")
    assert str(caught.value).startswith("cannot connect to Postgres at 127.0.0.1:1/db: ")
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(SetupError, match="LAKEFORK_DSN is neither"):
        connect("nonsense")
