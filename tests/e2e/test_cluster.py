"""The same job on a real cluster: a standalone master and two workers, from pyspark's own scripts."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from lake import add_real_file, make_catalog, make_table
from lakefork.catalog.connection import Connection

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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
    for number in (1, 2):
        log = logs / f"worker-{number}.log"
        processes.append(
            _start(log, "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                   "--work-dir", str(logs / f"work-{number}"), "--host", "127.0.0.1", url)
        )  # fmt: skip
        _wait_for(log, r"(Successfully registered with master)")
    yield url
    family = [child for process in processes for child in psutil.Process(process.pid).children(recursive=True)]
    for process in processes:
        process.terminate()
        process.wait(timeout=20)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


def test_fsck_runs_on_two_workers_with_the_library_shipped_to_them(
    cluster: str, connection: Connection, dsn: str, data_dir: Path, tmp_path: Path
) -> None:
    table = make_table(connection, make_catalog(connection, "main", str(data_dir)))
    paths = [Path(add_real_file(connection, table, f"shared/batch-{number}.parquet")) for number in range(8)]
    paths[5].unlink()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")}
    done = subprocess.run(
        [Path(sys.executable).parent / "lakefork", "run", "catalog_fsck", "--params", '{"deep": true}'],
        env={**clean, "LAKEFORK_DSN": dsn, "LAKEFORK_SPARK__MASTER": cluster, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=200, cwd=tmp_path,
    )  # fmt: skip
    assert f"8 file(s) to check in 2 task(s) on {cluster}" in done.stdout, done.stdout + done.stderr
    assert f"file 5 {paths[5]}: it does not exist" in done.stdout
    assert done.returncode == 1
    ((kept,),) = [tuple(row.values()) for row in connection.execute("SELECT result FROM system.jobs")]
    assert (kept["files"], kept["findings"]) == (8, 1), json.dumps(kept)
