"""Each example works as described."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lakefork.catalog.connection import connect
from lakefork.catalog.forks import existing_catalogs
from lakefork.embedded.airflow import _connection_json
from lakefork.embedded.demo import DEFINITIONS
from lakefork.errors import JobFailedError
from lakefork.quality.suites import expectations_directory
from lakefork.resources import resource
from support.duckdb_client import load_extensions
from support.flush_lake import FlushLake

EXAMPLES = resource("examples")


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def web(flush_lake: FlushLake) -> FlushLake:
    """The demo's tables with a few rows, some of them flushed."""
    lake = flush_lake.lake
    lake.run(DEFINITIONS["demo"])
    lake.run("INSERT INTO web.views (id, page, seconds) VALUES (1, 'home', 0.5), (2, 'home', 2.5), (3, 'shop', 4)")
    lake.run("INSERT INTO web.messages (id, text, stars) VALUES (1, 'hello', 3)", user="ada")
    flush_lake.flush()
    lake.run("INSERT INTO web.views (id, page, seconds) VALUES (4, 'shop', 6)")
    return flush_lake


def test_a_lake_per_run(web: FlushLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKEFORK", _connection_json(web.lake.dsn))
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(EXAMPLES / "dags"), load_op_links=False)
    assert bag.import_errors == {}
    dag = bag.dags["lake_per_run"]
    assert dag.get_task("drop").is_teardown and dag.get_task("fork").is_setup
    fork, try_it, drop = (dag.get_task(name).python_callable for name in ("fork", "try_it", "drop"))
    name = fork("main", "manual__1")
    assert fork("main", "manual__1") == name
    assert try_it(name) == 0
    assert web.lake.rows("SELECT count(*) FROM web.views") == [(4,)]
    drop(name)
    with connect(web.lake.dsn) as connection:
        assert existing_catalogs(connection, [name]) == {}


def test_reading_with_stock_duckdb(web: FlushLake) -> None:
    load_extensions()
    command = [sys.executable, EXAMPLES / "read_with_duckdb.py", web.lake.dsn, "main", "web.views"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "home" in done.stdout and "shop" in done.stdout and "snapshot_time" in done.stdout


def test_reading_with_spark(web: FlushLake, spark: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEFORK_DSN", web.lake.dsn)
    from lakefork.settings import load_settings

    load_settings.cache_clear()
    example = load("read_with_spark.py")
    session = SparkSession(spark)
    rows = example.views_by_page(session, "main").collect()
    assert [tuple(row) for row in rows] == [("home", 2, 1.5), ("shop", 2, 5.0)]
    assert [tuple(row) for row in example.messages_of(session, "ada", "main").collect()] == [(1, "hello", 3)]
    load_settings.cache_clear()


def test_expectations(web: FlushLake) -> None:
    settings = web.settings.model_copy(
        update={"flush": web.settings.flush.model_copy(update={"expectations": str(EXAMPLES / "expectations")})}
    )
    strict = FlushLake(web.lake, settings, expectations_directory(settings))
    web.lake.run("INSERT INTO web.messages (id, text, stars) VALUES (2, 'good', 5)", user="ada")
    assert strict.flush()["rows_out"] == 2
    web.lake.run("INSERT INTO web.messages (id, text, stars) VALUES (3, 'too many', 6)", user="ada")
    with pytest.raises(JobFailedError, match="stars"):
        strict.flush()


def test_the_list_of_examples_is_complete() -> None:
    files = [
        path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*") if path.is_file() and path.suffix in (".py", ".json")
    ]
    listed = (EXAMPLES / "README.md").read_text()
    assert [str(path) for path in files if f"]({path})" not in listed] == []
