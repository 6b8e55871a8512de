"""Connections of the ADBC driver, without what it does for each database: to read all types and columns there are."""

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_postgresql
from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatusCode
from adbc_driver_manager import Error as AdbcError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lakefork.watchdog import inode_of, is_claimed, shut_down

CONNECT_SECONDS = 10
# The driver reads pg_type and pg_attribute, which takes seconds among thousands of hot tables. We use only built-in
# types, and those are the same in each database of a server.
MAINTENANCE_DATABASE = "postgres"


@dataclass(frozen=True)
class Connected:
    """A connection. candidates: its socket, which the driver does not tell, and others opened at the time."""

    connection: AdbcConnection
    candidates: dict[int, int]

    def shut_down(self) -> None:
        """Ends, from another thread, waiting for a server that does not answer."""
        found = [fd for fd, inode in self.candidates.items() if inode_of(fd) == inode and not is_claimed(inode)]
        if len(found) == 1:
            shut_down(found[0])


def _sockets() -> dict[int, int]:
    """Returns the sockets of this process with their inodes; none where the system does not list them."""
    try:
        names = [path.name for path in Path("/proc/self/fd").iterdir()]
    except OSError:
        return {}
    return {int(name): inode for name in names if (inode := inode_of(int(name)))}


def _leads_to_postgres(fd: int, ports: set[str]) -> bool:
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as other:
        name = other.getpeername()
        return str(name[1] if isinstance(name, tuple) else name).rpartition(".")[2] in ports
    return False


def _ports(conninfo: str) -> set[str]:
    given = conninfo_to_dict(conninfo).get("port") or os.environ.get("PGPORT") or "5432"
    return set(str(given).split(","))


class _Driver:
    """The driver for one server."""

    def __init__(self, conninfo: str) -> None:
        self._lock = threading.Lock()
        self._database = _initialise(conninfo)

    def connect(self, conninfo: str) -> Connected:
        if not self._lock.acquire(timeout=CONNECT_SECONDS):
            raise AdbcError("timeout expired", status_code=AdbcStatusCode.TIMEOUT)
        try:
            self._database.set_options(uri=conninfo)
            before = _sockets()
            connection = AdbcConnection(self._database)
            ports = _ports(conninfo)
            new = {fd: inode for fd, inode in _sockets().items() if before.get(fd) != inode}
            return Connected(connection, {fd: inode for fd, inode in new.items() if _leads_to_postgres(fd, ports)})
        finally:
            self._lock.release()


_drivers: dict[str, _Driver] = {}
_lock = threading.Lock()


def open_connection(conninfo: str) -> Connected:
    """Opens a connection; the driver is initialised once per server and process."""
    server = _of_server(conninfo, None)
    driver = _drivers.get(server)
    if driver is None:
        driver = _Driver(conninfo)
        with _lock:
            driver = _drivers.setdefault(server, driver)
    return driver.connect(conninfo)


def _initialise(conninfo: str) -> AdbcDatabase:
    try:
        database: AdbcDatabase = adbc_driver_postgresql.connect(_of_server(conninfo, MAINTENANCE_DATABASE))
    except AdbcError:  # it was dropped, or the role may not use it
        database = adbc_driver_postgresql.connect(conninfo)
    return database


def _of_server(conninfo: str, database: str | None) -> str:
    """Returns the same server and role with another database, or none; without options, which hold per connection."""
    own = ("dbname", "options", "application_name")
    server = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if name not in own}
    return make_conninfo(dbname=database, **server)
