"""The jobs as a user runs them: by the command line, recorded in system.jobs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lakefork.manifests.format import FILE_NAME
from manifests.conftest import ManifestLake


def run_job(manifests: ManifestLake, job: str, **params: Any) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKEFORK_")}
    return subprocess.run(
        [sys.executable, "-m", "lakefork.cli.main", "run", job, "--params", json.dumps(params)],
        env={**clean, "LAKEFORK_DSN": manifests.lake.dsn, "PYTHONPATH": str(Path(__file__).parents[2] / "jobs")},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_rebuild_and_eviction_run_and_are_recorded(manifests: ManifestLake) -> None:
    path = manifests.directory("mine/user_ada") / FILE_NAME
    path.write_text("{")
    failed = run_job(manifests, "manifest_rebuild", check_only=True, table="mine")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        "manifest_rebuild failed: 1 finding(s): 1× broken manifest; each is listed above; "
        "run it without check_only to rewrite the manifests"
    )
    assert "Traceback" not in failed.stderr and path.read_text() == "{"
    healed = json.loads(run_job(manifests, "manifest_rebuild").stdout.splitlines()[-1])
    assert (healed["job"], healed["findings"], healed["manifests_written"]) == ("manifest_rebuild", 1, 1)
    evicted = json.loads(run_job(manifests, "manifest_eviction").stdout.splitlines()[-1])
    assert (evicted["job"], evicted["entries_evicted"], evicted["entries_left"]) == ("manifest_eviction", 0, 3)
    recorded = manifests.sql("SELECT job_type, status, result FROM system.jobs ORDER BY start_time")
    assert [row[:2] for row in recorded] == [
        ("manifest_rebuild", "failed"), ("manifest_rebuild", "completed"), ("manifest_eviction", "completed"),
    ]  # fmt: skip
    assert recorded[0][2]["findings"] == 1 and recorded[1][2] == healed
