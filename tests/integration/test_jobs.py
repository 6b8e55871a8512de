"""catalog_fsck as a user runs it: by the command line, through spark-submit, against real files and a real S3."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from lakefork.catalog.connection import Connection, connect
from lakefork.catalog.jobs import JobRun, start_job
from lakefork.catalog.leases import Leases
from lakefork.settings import Settings
from lakefork.spark import job
from lakefork.spark.job import MOST_SILENT_SECONDS
from lakefork.storage import StorageOptions
from support.lake import Table, add_real_file, make_catalog, make_table, rows_of


def run_cli(dsn: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")}
    return subprocess.run(
        [Path(sys.executable).parent / "lakefork", *arguments],
        env={**clean, "LAKEFORK_DSN": dsn, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def table(connection: Connection, data_dir: Path) -> Table:
    return make_table(connection, make_catalog(connection, "main", str(data_dir)))


def test_a_sound_lake_passes_and_the_result_is_the_last_line(connection: Connection, dsn: str, table: Table) -> None:
    for number in range(5):
        add_real_file(connection, table, f"shared/batch-{number}.parquet")
    before = rows_of(connection, "SELECT max(snapshot_id) FROM ducklake_snapshot")
    done = run_cli(dsn, "run", "catalog_fsck", "--params", '{"deep": true}')
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert {"run_id", "job", "files", "findings", "seconds", "peak_memory_mb"} <= result.keys()
    assert (result["job"], result["files"], result["catalogs"], result["findings"]) == ("catalog_fsck", 5, 1, 0)
    assert "catalog_fsck: [####################] 100% 5 of 5 file(s) checked" in done.stdout
    assert rows_of(connection, "SELECT max(snapshot_id) FROM ducklake_snapshot") == before
    ((job_type, run_id, trace, status, kept, memory, cpu, error),) = rows_of(
        connection,
        "SELECT job_type, run_id, trace, status, result, memory_used_mb, cpu_used_percent, error_message FROM system.jobs",
    )
    assert (job_type, run_id, trace, status, kept, error) == (
        "catalog_fsck",
        result["run_id"],
        "cli",
        "completed",
        result,
        None,
    )
    assert memory > 100 and cpu > 0
    shown = run_cli(dsn, "status", "--json")
    assert json.loads(shown.stdout)["catalogs"] == [
        {"name": "main", "tables": 1, "hot": 0, "files": 5, "rows": 500, "bytes": result["bytes"]}
    ]


def test_damaged_files_are_listed_and_the_job_fails(connection: Connection, dsn: str, table: Table) -> None:
    paths = [Path(add_real_file(connection, table, f"shared/batch-{number}.parquet")) for number in range(5)]
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    content = bytearray(paths[2].read_bytes())
    content[-20:] = b"\xff" * 20
    paths[2].write_bytes(content)
    connection.execute(
        "UPDATE ducklake_file_column_stats SET max_value = '98' WHERE data_file_id = 3 AND column_id = 1"
    )
    done = run_cli(dsn, "run", "catalog_fsck", "--params", '{"deep": true, "catalog": "main"}')
    assert done.returncode == 1
    findings = [line for line in done.stdout.splitlines() if line.startswith("catalog_fsck: file: catalog main: ")]
    assert [line.split(": ")[3].split()[1] for line in findings] == ["0", "1", "2", "3"], done.stdout
    for text, line in zip(
        ("does not exist", "bytes, expected", "not readable Parquet", "statistics of column 1"), findings, strict=True
    ):
        assert text in line
    assert done.stderr.strip().splitlines()[-1] == (
        "catalog_fsck failed: 4 finding(s) in main (4): 4× file; each is listed above"
    )
    assert "Traceback" not in done.stderr
    ((status, error, result),) = rows_of(connection, "SELECT status, error_message, result FROM system.jobs")
    assert (status, error.split(" in ")[0], result["findings"]) == ("failed", "4 finding(s)", 4)
    shallow = run_cli(dsn, "run", "catalog_fsck")
    assert "2 finding(s)" in shallow.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "catalog_fsck", "--params", '{"depe": true}'],
            "unknown parameter 'depe'; parameters: catalog, deep",
        ),
        (["run", "nonsense"], "job 'nonsense' does not exist; jobs: catalog_fsck"),
    ],
)
def test_bad_parameters_are_refused_before_spark_starts(dsn: str, arguments: list[str], sentence: str) -> None:
    done = run_cli(dsn, *arguments)
    assert done.returncode == 1
    assert sentence in done.stderr and len(done.stderr.splitlines()) == 1


def test_an_unknown_catalog_and_a_busy_lease_are_one_line(connection: Connection, dsn: str, table: Table) -> None:
    Leases("somebody else", 600).take(connection, "catalog_fsck/*")
    busy = run_cli(dsn, "run", "catalog_fsck", LAKEFORK_JOBS__LEASE_SECONDS="5")
    assert busy.returncode == 1
    assert "catalog_fsck: catalog_fsck/* is being worked on by somebody else since " in busy.stdout
    assert "UTC: waiting for it, for 6 s at most" in busy.stdout
    assert busy.stderr.splitlines()[-1].startswith(
        "catalog_fsck failed: catalog_fsck/* is being worked on by somebody else since "
    )
    missing = run_cli(dsn, "run", "catalog_fsck", "--params", '{"catalog": "nope"}')
    assert missing.returncode == 1
    assert missing.stderr.splitlines()[-1] == (
        "catalog_fsck failed: catalog 'nope' does not exist; `lakefork status` lists catalogs"
    )
    said = rows_of(connection, "SELECT status, left(error_message, 38) FROM system.jobs ORDER BY start_time")
    assert said == [
        ("failed", "catalog_fsck/* is being worked on by s"), ("failed", "catalog 'nope' does not exist; `lakefo"),
    ]  # fmt: skip


def test_a_run_that_stopped_reporting_counts_as_failed(connection: Connection) -> None:
    connection.execute(
        "INSERT INTO lakefork.job_run (job_id, job, run_id, trace, params, status, started_at, heartbeat_at, node_id) VALUES "
        "('a', 'flush', 'r', 'cli/a', '{}', 'running', now() - interval '1 hour', now() - interval '1 hour', 'n'), "
        "('b', 'flush', 's', 'cli/b', '{}', 'running', now(), now(), 'n')"
    )
    assert rows_of(connection, "SELECT run_id, status, error_message FROM system.jobs ORDER BY 1") == [
        ("r", "failed", "the process stopped reporting"),
        ("s", "running", None),
    ]


def test_files_on_s3_are_checked(connection: Connection, dsn: str, s3: str) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    table = make_table(connection, make_catalog(connection, "main", "s3a://lake/main"))
    for number in range(3):
        add_real_file(connection, table, f"shared/batch-{number}.parquet", storage=StorageOptions(s3, "us-east-1"))
    options = {"LAKEFORK_STORAGE__S3_ENDPOINT": s3, "LAKEFORK_STORAGE__S3_REGION": "us-east-1"}
    done = run_cli(dsn, "run", "catalog_fsck", "--params", '{"deep": true}', **options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["files"] == 3
    client.delete_object(Bucket="lake", Key="main/app/t/shared/batch-1.parquet")
    damaged = run_cli(dsn, "run", "catalog_fsck", **options)
    assert damaged.returncode == 1
    assert "file 1 s3://lake/main/app/t/shared/batch-1.parquet: it does not exist" in damaged.stdout
    assert "test-secret" not in damaged.stdout + damaged.stderr


def test_a_long_lease_does_not_make_a_job_look_dead(
    connection: Connection, dsn: str, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of ten minutes is longer than the silence that system.jobs allows."""
    assert MOST_SILENT_SECONDS < 60
    monkeypatch.setattr(job, "MOST_SILENT_SECONDS", 0)
    run = JobRun("j", "flush", "r", "cli/j", "n")
    start_job(connection, run, {})
    with connect(dsn) as own, job._Heartbeat(job.JobContext(run, make_settings(), dsn, own, Leases("j", 600))):
        beats: set[object] = set()
        deadline = time.monotonic() + 20
        while len(beats) < 3 and time.monotonic() < deadline:
            time.sleep(0.3)
            beats |= set(rows_of(connection, "SELECT heartbeat_at FROM lakefork.job_run"))
    assert len(beats) >= 3
