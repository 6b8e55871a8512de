"""The same job on a real cluster: a standalone master and two workers, from pyspark's own scripts."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pyspark
import pytest

from lakefork.catalog.connection import Connection, connect
from support.lake import add_real_file, make_catalog, make_table, rows_of
from support.sql_lake import SqlLake

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def _start(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOG_DIR": str(log.parent),
    }  # fmt: skip
    with log.open("wb") as output:
        return subprocess.Popen(
            [SPARK_CLASS, *arguments],
            env=environment,
            cwd=log.parent,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _wait_for(log: Path, pattern: str, seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    while not (found := re.search(pattern, log.read_text(errors="replace"))):
        assert time.monotonic() < deadline, f"{pattern!r} not in {log}: {log.read_text(errors='replace')[-2000:]}"
        time.sleep(0.3)
    return found.group(1)


@dataclass
class Cluster:
    url: str
    workers: list[subprocess.Popen[bytes]]

    def run(self, dsn: str, job: str, params: str, cwd: Path, **settings: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")}
        return subprocess.Popen(
            [Path(sys.executable).parent / "lakefork", "run", job, "--params", params],
            env={**clean, "LAKEFORK_DSN": dsn, "LAKEFORK_SPARK__MASTER": self.url, "SPARK_LOCAL_IP": "127.0.0.1", **settings},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
        )  # fmt: skip

    def stop_python(self) -> list[psutil.Process]:
        """SIGSTOP for what runs tasks on one worker; whoever calls it kills them."""
        family = psutil.Process(self.workers[0].pid).children(recursive=True)
        found = [one for one in family if "python" in one.name()]
        for one in found:
            one.suspend()
        return found

    def kill_worker(self) -> None:
        """kill −9 for a worker and the executor that it started."""
        worker = self.workers.pop()
        for child in psutil.Process(worker.pid).children(recursive=True):
            child.kill()
        worker.kill()
        worker.wait(timeout=20)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("cluster")
    master_log = logs / "master.log"
    processes = [
        _start(
            master_log,
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
        )
    ]
    url = _wait_for(master_log, r"Starting Spark master at (spark://\S+)")
    for number, host in ((1, "127.0.0.1"), (2, "localhost")):  # Spark speculates on another host only
        log = logs / f"worker-{number}.log"
        processes.append(
            _start(log, "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                   "--work-dir", str(logs / f"work-{number}"), "--host", host, url)
        )  # fmt: skip
        _wait_for(log, r"(Successfully registered with master)")
    cluster = Cluster(url, processes[1:])
    yield cluster
    processes = [processes[0], *cluster.workers]
    family = [child for process in processes for child in psutil.Process(process.pid).children(recursive=True)]
    for process in processes:
        process.terminate()
        process.wait(timeout=20)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


def test_fsck_runs_on_two_workers_with_the_library_shipped_to_them(
    cluster: Cluster, connection: Connection, dsn: str, data_dir: Path, tmp_path: Path
) -> None:
    table = make_table(connection, make_catalog(connection, "main", str(data_dir)))
    paths = [Path(add_real_file(connection, table, f"shared/batch-{number}.parquet")) for number in range(8)]
    paths[5].unlink()
    process = cluster.run(dsn, "catalog_fsck", '{"deep": true}', tmp_path)
    stdout, stderr = process.communicate(timeout=200)
    assert f"8 file(s) to check in 2 task(s) on {cluster.url}" in stdout, stdout + stderr
    assert f"file 5 {paths[5]}: it does not exist" in stdout
    assert process.returncode == 1
    ((kept,),) = [tuple(row.values()) for row in connection.execute("SELECT result FROM system.jobs")]
    assert (kept["files"], kept["findings"]) == (8, 1), json.dumps(kept)


USERS = [f"user{number:02}" for number in range(40)]
SLOW_WORKER = """
spark.speculation true
spark.speculation.interval 100ms
spark.speculation.quantile 0.1
spark.speculation.multiplier 1.1
"""


@pytest.fixture
def filled(lake: SqlLake) -> SqlLake:
    """2,500 versions of 2,000 rows of each user wait."""
    lake.run("CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, v TEXT)")
    for user in USERS:
        lake.engine.load(
            lake.session(user), "app.t", pa.table({"id": range(2_000), "v": [f"{user} {n}" for n in range(2_000)]})
        )
        lake.run("UPDATE app.t SET v = v || '!' WHERE id < 500", user=user)
    return lake


def start_flush(cluster: Cluster, lake: SqlLake, cwd: Path, **settings: str) -> subprocess.Popen[str]:
    """Returns in the middle of the work."""
    process = cluster.run(
        lake.dsn, "flush", '{"force": true}', cwd, LAKEFORK_FLUSH__SLICE_ROWS="2500", LAKEFORK_FLUSH__SLICE_MB="1",
        **settings,
    )  # fmt: skip
    with connect(lake.dsn) as connection:
        deadline = time.monotonic() + 100
        while not rows_of(connection, "SELECT 1 FROM lakefork.staged_file LIMIT 1"):
            assert process.poll() is None and time.monotonic() < deadline, "no task has begun"
            time.sleep(0.02)
    return process


def check_flushed(process: subprocess.Popen[str], lake: SqlLake) -> None:
    """Exactly the right rows, in exactly the right files."""
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stdout + stderr
    result = json.loads(stdout.splitlines()[-1])
    assert (result["users"], result["rows_in"], result["rows_out"]) == (40, 40 * 2_500, 40 * 2_000)
    assert result["peak_memory_mb"] > 700, "a driver alone takes half of that"
    with connect(lake.dsn) as connection:
        paths = [path for (path,) in rows_of(
            connection, "SELECT f.path FROM system.tables t "
            "CROSS JOIN LATERAL lakefork.table_files(t.catalog_id, t.table_id, NULL, '{}') f",
        )]  # fmt: skip
        assert rows_of(connection, "SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    on_disk = sorted(str(path) for path in Path(lake.catalog.data_path).rglob("*.parquet"))
    assert on_disk == sorted(paths), "nothing of attempts that were lost"
    assert len({Path(path).parent for path in paths}) == len(paths) == 40, "one file of each user, not two"
    found = duckdb.sql(f"SELECT _user_id, id, v FROM read_parquet({paths!r}) ORDER BY ALL").fetchall()
    assert found == [(user, n, f"{user} {n}{'!' if n < 500 else ''}") for user in USERS for n in range(2_000)]
    assert lake.rows("SELECT count(*) FROM app.t", user="user07") == [(2_000,)]


def test_a_flush_does_not_wait_for_a_worker_that_stands_still(
    cluster: Cluster, filled: SqlLake, tmp_path: Path
) -> None:
    """Spark lets the other one do its task as well, without waiting for it: what either wrote counts once (scenario 12)."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(SLOW_WORKER)
    process = start_flush(cluster, filled, tmp_path, SPARK_CONF_DIR=str(tmp_path / "conf"))
    still = cluster.stop_python()
    assert still
    try:
        check_flushed(process, filled)
    finally:
        for one in still:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def test_a_flush_survives_a_worker_that_is_killed(cluster: Cluster, filled: SqlLake, tmp_path: Path) -> None:
    """Half of the cluster dies in the middle of the work."""
    process = start_flush(cluster, filled, tmp_path)
    cluster.kill_worker()
    check_flushed(process, filled)
