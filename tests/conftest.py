"""One Postgres and one Spark for each worker of the suite; each test gets a database of its own, copied from a template with the schema."""

import itertools
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psycopg
import pytest
from moto.server import ThreadedMotoServer
from pyspark import SparkConf, SparkContext

from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.schema import init_catalog
from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import PostgresSettings, Settings
from lakefork.spark.submit import CONF
from support.cloned_lake import Cloned, Prototypes
from support.flush_lake import FlushLake
from support.sql_lake import SqlLake, open_lake

_numbers = itertools.count()
IN_MEMORY = 6 << 30  # bytes, for several workers
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "LAKEFORK_S3_VAULT_ACCESS_KEY_ID": "vault-key",
    "LAKEFORK_S3_VAULT_SECRET_ACCESS_KEY": "vault-secret",
    "LAKEFORK_S3_VAULT_CATALOGS": "main, cloud",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that several workers end together."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For several workers: a file stays together, and so do those of the one stack."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return "stack" if "/e2e/" in nodeid else nodeid.partition("::")[0]

    return ByFile(config, log)


@pytest.fixture(scope="session")
def make_settings(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Settings]:
    """Settings with a home of their own, independent of the developer's environment."""

    def make(**changes: object) -> Settings:
        home = tmp_path_factory.mktemp("home")
        return Settings.model_construct(**{**dict(Settings()), "dsn": None, "home": home, **changes})

    return make


@pytest.fixture(scope="session")
def postgres(make_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's DSN. fsync is off: the machine does not lose power in the middle of a test."""
    with _quick_directory(tmp_path_factory) as home:
        settings = make_settings(home=home, postgres=PostgresSettings(max_connections=150))
        server = EmbeddedPostgres(settings, server_options={"fsync": "off", "max_wal_size": "1GB"})
        try:
            yield server.start()
        finally:
            server.stop()


@contextmanager
def _quick_directory(paths: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory if there is room: a database is copied for each test, in half the time."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > IN_MEMORY:
        with TemporaryDirectory(prefix="lakefork-", dir=memory) as home:
            yield Path(home)
    else:
        yield paths.mktemp("home")


@pytest.fixture(scope="session")
def logical(make_settings: Callable[..., Settings]) -> Iterator[EmbeddedPostgres]:
    """Another server, which sends its changes."""
    options = {"wal_level": "logical", "max_replication_slots": "20", "max_prepared_transactions": "5"}
    server = EmbeddedPostgres(make_settings(), server_options={"fsync": "off", "max_wal_size": "1GB", **options})
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def template(postgres: str) -> str:
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("CREATE DATABASE template_lakefork")
    with connect(in_database(postgres, "template_lakefork"), check_version=False) as connection:
        init_catalog(connection)
    return "template_lakefork"


@pytest.fixture
def empty_dsn(postgres: str) -> Iterator[str]:
    with _fresh_database(postgres, "template1") as dsn:
        yield dsn


@pytest.fixture
def dsn(postgres: str, template: str) -> Iterator[str]:
    with _fresh_database(postgres, template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_dsn(postgres: str, template: str) -> Iterator[str]:
    """One database for all tests of a module."""
    with _fresh_database(postgres, template) as dsn:
        yield dsn


@pytest.fixture
def connection(dsn: str) -> Iterator[Connection]:
    with connect(dsn) as connection:
        yield connection


def in_database(dsn: str, name: str) -> str:
    return f"{dsn.rpartition('/')[0]}/{name}"


@contextmanager
def _fresh_database(postgres: str, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        yield in_database(postgres, name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def lake(dsn: str, data_dir: Path, make_settings: Callable[..., Settings]) -> Iterator[SqlLake]:
    with open_lake(dsn, data_dir, make_settings()) as lake:
        yield lake


@pytest.fixture(scope="module")
def module_lake(
    module_dsn: str, tmp_path_factory: pytest.TempPathFactory, make_settings: Callable[..., Settings]
) -> Iterator[SqlLake]:
    with open_lake(module_dsn, tmp_path_factory.mktemp("data"), make_settings()) as lake:
        yield lake


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkContext]:
    """One Spark for the whole suite; two cores, and a failed task is tried again."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # at exit it would write to what is closed already
    conf = SparkConf().setMaster("local[2, 2]").setAppName("tests").setAll(list(CONF.items()))
    with pytest.MonkeyPatch.context() as patched:
        here = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **S3_ENVIRONMENT}
        for name, value in here.items():
            patched.setenv(name, value)  # for its workers, which outlive a test's own environment
        context = SparkContext(conf=conf)
    yield context
    context.stop()


@pytest.fixture
def flush_lake(
    lake: SqlLake,
    spark: SparkContext,
    make_settings: Callable[..., Settings],
    tmp_path: Path,
) -> FlushLake:
    """A lake whose flushes run in this process."""
    return FlushLake(lake, make_settings(), tmp_path / "expectations")


@pytest.fixture(scope="session")
def prototypes(
    postgres: str,
    template: str,
    spark: SparkContext,
    make_settings: Callable[..., Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Prototypes:
    return Prototypes(postgres, template, make_settings, tmp_path_factory)


@pytest.fixture
def cloned(prototypes: Prototypes, tmp_path: Path) -> Iterator[Cloned]:
    """Copies of lakes that were filled once."""
    with ExitStack() as stack:
        yield lambda fill: stack.enter_context(prototypes.clone(fill, tmp_path))


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 server."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    httpx.post(f"http://{host}:{port}/moto-api/reset").raise_for_status()  # its buckets outlive a server
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    yield f"http://{host}:{port}"
    server.stop()
