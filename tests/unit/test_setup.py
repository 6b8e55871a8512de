"""Set-up, linters and hosted CI: what they are told."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lakefork import __version__
from lakefork.resources import resource

SHOW = "show: ; @echo $$UV_SYSTEM_CERTS"


@pytest.mark.parametrize(("given", "expected"), [({}, "true"), ({"UV_SYSTEM_CERTS": "false"}, "false")])
def test_uv_takes_the_certificates_of_the_system(given: dict[str, str], expected: str) -> None:
    """As pip does: behind a company's proxy only the system knows the right ones."""
    command = ["make", "--silent", f"--eval={SHOW}", "show"]
    environment = {"PATH": "/usr/bin:/bin", **given}
    done = subprocess.run(command, cwd=resource("."), env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_uv_knows_the_variable() -> None:
    uv = Path(sys.executable).parent / "uv"
    done = subprocess.run([uv, "pip", "install", "--help"], capture_output=True, text=True, check=True)
    assert "UV_SYSTEM_CERTS" in done.stdout


def test_hosted_ci_runs_what_everybody_runs() -> None:
    workflow = yaml.safe_load(resource(".github/workflows/test.yaml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert steps[-1] == {"run": "make test"}
    versions = {name: value for step in steps for name, value in step.get("with", {}).items()}
    assert versions["java-version"] == "17"
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"][0] == "3.11"
    assert workflow["permissions"] == {"contents": "read"}


def test_the_changelog_begins_with_this_version() -> None:
    headings = [line for line in resource("CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].removeprefix("## ").split()[0] == __version__


def test_sql_files_are_at_most_120_columns_wide() -> None:
    files = [path for room in ("schema", "jobs", "include") for path in resource(room).rglob("*.sql")]
    lines = [
        (path, number)
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 120
    ]
    assert files and lines == []
