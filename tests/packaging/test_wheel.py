"""The wheel is all that is needed: in an empty environment, far from the repository, a catalog is made, filled, flushed and read."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakefork import __version__
from lakefork.resources import resource

UV = Path(sys.executable).parent / "uv"
KEPT = (
    "PATH",
    "HOME",
    "JAVA_HOME",
    "LANG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)  # of the environment, besides uv's and pip's


def uv(*arguments: object, cwd: Path) -> None:
    """From uv's cache, which the set-up has filled, or else from the network."""
    done = None
    for offline in ("--offline", "--no-offline"):
        done = subprocess.run([UV, *map(str, arguments), offline, "--quiet"], cwd=cwd, capture_output=True, text=True)
        if done.returncode == 0:
            return
    assert done and done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, so that this is complete, too."""
    directory = tmp_path_factory.mktemp("dist")
    uv("build", "--out-dir", directory, cwd=resource("."))
    (built,) = directory.glob("*.whl")
    return built


class Installed:
    """The wheel in an environment of its own."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self.directory = directory
        self.python = directory / "venv" / "bin" / "python"
        uv("venv", "--python", sys.executable, directory / "venv", cwd=directory)
        uv("pip", "install", "--python", self.python, "-c", resource("constraints.txt"), wheel, cwd=directory)

    def run(self, *arguments: str) -> str:
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment["LAKEFORK_HOME"] = str(self.directory / "home")
        command = [self.python.parent / "lakefork", *arguments]
        done = subprocess.run(command, env=environment, cwd=self.directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, sql: str) -> object:
        return json.loads(self.run("sql", "--format", "json", sql))["results"][-1]["rows"]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    made = Installed(tmp_path_factory.mktemp("installed"), wheel)
    made.run("db", "start")
    yield made
    made.run("db", "stop")


def test_it_works_outside_the_repository(installed: Installed) -> None:
    assert installed.run("--version") == f"lakefork {__version__}\n"
    installed.run("init")
    assert "nothing to do" in installed.run("upgrade")
    installed.run(
        "sql",
        "CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO app.t VALUES (1, 'one'), (2, 'two')",
    )
    result = json.loads(installed.run("run", "flush", "--params", '{"force": true}').splitlines()[-1])
    assert (result["files_written"], result["rows_out"]) == (1, 2)
    installed.run("sql", "DELETE FROM app.t WHERE id = 1")
    assert installed.rows("SELECT id, v FROM app.t") == [[2, "two"]]
    assert len(list(installed.directory.rglob("batch-0.parquet"))) == 1
    folders = dict(line.split("=") for line in installed.run("airflow", "folders").splitlines())
    assert (Path(folders["AIRFLOW__CORE__DAGS_FOLDER"]) / "flush.py").is_file()
    assert (Path(folders["AIRFLOW__CORE__PLUGINS_FOLDER"]) / "lakefork_plugin.py").is_file()
    with pytest.raises(AssertionError, match=r"Airflow is not installed: run `pip install 'lakefork\[airflow\]'`"):
        installed.run("stack", "up")
    origin = subprocess.run(
        [installed.python, "-c", "import lakefork.resources as r; print(r.__file__, r.resource('schema'), r.resource('dags'))"],
        cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert all(path.startswith(str(installed.directory)) for path in origin.stdout.split())


def test_it_holds_what_the_repository_has_at_its_top(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    patterns = ("schema/**/*.sql", "dags/*.py", "jobs/**/*.py", "jobs/**/*.sql", "plugins/**/*.py", "plugins/**/web/*")
    sources = [path for pattern in patterns for path in resource(".").glob(pattern)]
    sources += [
        resource("include/config/lakefork.toml"),
        resource("include/log4j2.properties"),
        resource("plugins/.airflowignore"),
    ]
    missing = [name for name in map(_name_in_wheel, sources) if name not in names]
    assert missing == []
    assert not any("__pycache__" in name or name.startswith("tests") for name in names)


def _name_in_wheel(path: Path) -> str:
    name = str(path.relative_to(resource(".")))
    library = "jobs/lakefork/"
    return name.removeprefix("jobs/") if name.startswith(library) else f"lakefork/_resources/{name}"


def test_dependencies_are_ranges_around_what_is_pinned() -> None:
    project = tomllib.loads(resource("pyproject.toml").read_text())["project"]
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    ranges = {re.split(r"[\[<>=]", one)[0]: one for one in project["dependencies"] + extras}
    pins = dict(line.split("==") for line in resource("constraints.txt").read_text().splitlines() if "==" in line)
    for name, text in ranges.items():
        low, _, high = re.sub(r"^[^<>=]*(\[.*\])?", "", text).removeprefix(">=").partition(",<")
        assert _numbers(low) <= _numbers(pins[name]) < _numbers(high or "9999"), text
    listed = [
        line.split("#")[0].split("[")[0].strip() for line in resource("requirements.txt").read_text().splitlines()
    ]
    assert {name for name in listed if name and not name.startswith("-")} == set(ranges)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
