"""Connections of the ADBC driver, without what it does for each database: to read all types and columns there are."""

import threading

import adbc_driver_postgresql
from adbc_driver_manager import AdbcConnection, AdbcDatabase, AdbcStatusCode
from adbc_driver_manager import Error as AdbcError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

CONNECT_SECONDS = 10
# The driver reads pg_type and pg_attribute, which takes seconds among thousands of hot tables. We use only built-in
# types, and those are the same in each database of a server.
MAINTENANCE_DATABASE = "postgres"


class _Driver:
    """The driver for one server."""

    def __init__(self, conninfo: str) -> None:
        self._lock = threading.Lock()
        self._database = _initialise(conninfo)

    def connect(self, conninfo: str) -> AdbcConnection:
        if not self._lock.acquire(timeout=CONNECT_SECONDS):
            raise AdbcError("timeout expired", status_code=AdbcStatusCode.TIMEOUT)
        try:
            self._database.set_options(uri=conninfo)
            return AdbcConnection(self._database)
        finally:
            self._lock.release()


_drivers: dict[str, _Driver] = {}
_lock = threading.Lock()


def open_connection(conninfo: str) -> AdbcConnection:
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
