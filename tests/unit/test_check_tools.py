"""A missing or old Python or Java is one line that says how to get it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def check(tools: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    for name in ("sh", "sed", "head"):
        (tools / name).symlink_to(next(p for p in (Path("/bin") / name, Path("/usr/bin") / name) if p.exists()))
    return subprocess.run(
        [tools / "sh", ROOT / "include/check_tools.sh"],
        env={"PATH": str(tools), **environment},
        capture_output=True,
        text=True,
    )


def fake(tools: Path, name: str, body: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\n{body}\n")
    (tools / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "bin"
    path.mkdir()
    fake(path, "python3", "exit 0")
    return path


@pytest.mark.parametrize(
    "version", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19', 'java version "25.0.1"']
)
def test_a_recent_java_is_accepted(tools: Path, version: str) -> None:
    fake(tools, "java", f"echo '{version}' >&2")
    done = check(tools)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("java", "found"),
    [
        (None, "none"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "11"),
        ("echo 'java version \"1.8.0_292\"' >&2", "1"),
    ],
)
def test_a_missing_or_old_java_is_one_line(tools: Path, java: str | None, found: str) -> None:
    if java:
        fake(tools, "java", java)
    done = check(tools)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Lakefork needs Java 17 or newer for Spark (found: {found}): install it")
    assert len(done.stderr.splitlines()) == 1


def test_java_home_decides(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "jdk/bin").mkdir(parents=True)
    fake(tmp_path / "jdk/bin", "java", "echo 'openjdk version \"17.0.1\"' >&2")
    assert check(tools, JAVA_HOME=str(tmp_path / "jdk")).returncode == 0


def test_an_old_python_is_one_line(tools: Path) -> None:
    fake(tools, "python3", 'if [ "$1" = --version ]; then echo "Python 3.9.2"; else exit 1; fi')
    done = check(tools)
    assert done.returncode == 1
    assert done.stderr.startswith("Lakefork needs Python 3.11 or newer (Python 3.9.2): install it")
    assert len(done.stderr.splitlines()) == 1


def test_the_makefile_asks_first() -> None:
    done = subprocess.run(
        ["make", "setup", "PYTHON=/nonexistent/python3"], cwd=ROOT, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode != 0 and "Lakefork needs Python 3.11 or newer" in done.stderr
