"""The embedded Postgres: private, on loopback only, and back after a kill −9."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded import home as home_module
from lakefork.embedded import postgres as postgres_module
from lakefork.embedded.home import prepare_home
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.embedded.postmaster import PidFile, read_pid_file
from lakefork.errors import SetupError
from lakefork.settings import PostgresSettings, Settings
from support.lake import add_file, files_at, make_catalog, make_table, rows_of


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
        _kill(settings, with_children=True)
    url = server.start()
    with connect(url) as connection:
        assert files_at(connection, table) == [f"batch-{number}" for number in range(20)]
        assert add_file(connection, table, "after").first_file_id == 20
        assert rows_of(connection, "SELECT * FROM lakefork.fsck()") == []


def _postmaster(settings: Settings) -> int:
    return int((settings.home / "postgres/data/postmaster.pid").read_text().splitlines()[0])


def _kill(settings: Settings, *, with_children: bool) -> None:
    """Nobody waits until they are gone."""
    leader = psutil.Process(_postmaster(settings))
    for process in [leader, *(leader.children(recursive=True) if with_children else [])]:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("with_children", [True, False])
def test_it_starts_right_after_a_kill(server: EmbeddedPostgres, settings: Settings, with_children: bool) -> None:
    """A killed process stays a zombie for as long as nobody collects it, and its children live on for a while."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS id")
        _kill(settings, with_children=with_children)
        url = server.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (1000,)


def test_commands_that_start_it_at_once_after_a_kill(server: EmbeddedPostgres, settings: Settings) -> None:
    _kill(settings, with_children=False)
    command = [str(Path(sys.executable).parent / "lakefork"), "db", "start"]
    environment = {**os.environ, "LAKEFORK_HOME": str(settings.home), "LAKEFORK_POSTGRES__SHARED_BUFFERS": "32MB"}
    started = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate()[1].splitlines() for one in started]
    assert [one.returncode for one in started] == [0, 0], said
    assert all(": waiting for it, " in line for lines in said for line in lines)
    psycopg.connect(server.url()).close()


def test_a_pid_file_whose_number_another_program_has(server: EmbeddedPostgres, settings: Settings) -> None:
    """Neither is the stranger taken for the server, nor stopped in its place."""
    server.stop()
    data = settings.home / "postgres/data"
    (data / "postmaster.pid").write_text(f"{os.getpid()}\n{data}\n1700000000\n1\n\n127.0.0.1\n  1  2\nready   \n")
    assert not server.is_running() and not server.stop()
    psycopg.connect(server.start()).close()


@pytest.mark.parametrize("content", ["", "123", "123\n/x\n170"])
def test_a_pid_file_that_is_being_written(settings: Settings, content: str) -> None:
    data = settings.home / "postgres/data"
    data.mkdir(parents=True)
    (data / "postmaster.pid").write_text(content)
    with pytest.raises(SetupError, match="not running: start it with `lakefork db start`"):
        EmbeddedPostgres(settings).url()


def test_a_server_that_is_still_shutting_down_is_waited_for(server: EmbeddedPostgres, settings: Settings) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor() as pool, psycopg.connect(server.url()) as connection:
        connection.execute("SELECT 1")
        os.kill(_postmaster(settings), signal.SIGTERM)  # a smart shutdown waits for this connection
        starting = pool.submit(server.start, lines.append)
        _wait_until(lambda: bool(lines))
        assert lines[0].startswith("Postgres is still shutting down: waiting for it, ")
        connection.close()
        psycopg.connect(starting.result()).close()


def test_a_long_recovery_is_waited_for_with_a_word(
    server: EmbeddedPostgres, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still for longer than pg_ctl waits; a server that never gets ready is given up."""
    lines: list[str] = []
    dead = _postmaster(settings)
    _kill(settings, with_children=True)
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(server.start, lines.append)
        _wait_until(lambda: _is_another(read_pid_file(settings.home / "postgres/data"), dead))
        os.kill(_postmaster(settings), signal.SIGSTOP)
        try:
            _wait_until(lambda: bool(lines) or starting.done())
            monkeypatch.setattr(postgres_module, "START_SECONDS", 1.0)
            with pytest.raises(SetupError, match=r"after 1 s another command is starting Postgres: see .*server\.log"):
                EmbeddedPostgres(settings).start()
        finally:
            os.kill(_postmaster(settings), signal.SIGCONT)
        psycopg.connect(starting.result()).close()
    assert lines[0].startswith("Postgres is starting, or recovering after a crash: waiting for it, ")


def _is_another(found: PidFile | None, dead: int) -> bool:
    return found is not None and found.pid != dead and psutil.pid_exists(found.pid)


def _wait_until(reached: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


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
            "lakefork: Postgres does not run as root, and this root has no capabilities: use another user, or set LAKEFORK_DSN\n"
        )
    else:
        assert started.returncode == 0, started.stderr


def test_a_taken_port_is_one_clear_line(settings: Settings) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = settings.model_copy(update={"postgres": PostgresSettings(port=port)})
        with pytest.raises(SetupError, match=f"port {port} for postgres is in use .* set LAKEFORK_POSTGRES__PORT"):
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
