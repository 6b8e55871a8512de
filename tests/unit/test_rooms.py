"""Imports point down (docs/decisions.md), and light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"
LIBRARY = JOBS / "lakefork"
BASE = {
    "settings",
    "errors",
    "database_errors",
    "pools",
    "params",
    "seqid",
    "queries",
    "column_types",
    "tables",
    "predicates",
    "durations",
    "progress",
}
MAY_IMPORT = {
    "settings": {"errors", "durations"},
    "errors": set(),
    "database_errors": {"errors"},
    "pools": {"errors"},
    "queries": set(),
    "progress": set(),
    "params": {"errors", "durations"},
    "seqid": {"errors", "database_errors"},
    "column_types": {"errors"},
    "durations": {"errors"},
    "tables": {"errors", "column_types", "durations"},
    "predicates": {"column_types", "errors", "tables"},
    "catalog": BASE,
    "hot": BASE,
    "storage": BASE,
    "cold": BASE | {"storage"},
    "maintenance": {"errors", "params", "predicates", "tables", "column_types", "cold.statistics"},
    "spark": BASE | {"catalog", "hot", "storage", "cold", "maintenance"},
    "quality": BASE | {"catalog", "storage", "cold", "maintenance", "spark"},
    "sql": BASE | {"catalog", "hot", "storage", "cold", "maintenance"},
    "completion": set(),
    "overview": BASE | {"catalog", "maintenance", "cold.statistics"},
    "orchestration": BASE | {"catalog", "spark.submit"},
    "embedded": BASE | {"catalog", "storage", "sql", "overview"},
    "cli": {"commands", "errors", "database_errors"},
    "commands": BASE
    | {"completion", "catalog", "hot", "storage", "cold", "maintenance", "spark", "sql", "overview", "embedded"},
}
HEAVY = {"airflow", "pyspark", "great_expectations", "duckdb", "pyarrow", "pandas"}


def _imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} if node.module != "lakefork" else {f"lakefork.{alias.name}" for alias in node.names}
    return found


def _room(path: Path) -> str:
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


MODULES = sorted(path for path in LIBRARY.rglob("*.py") if path != LIBRARY / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(LIBRARY)))
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    room = _room(path)
    for module in _imports(path):
        if module.startswith("lakefork."):
            target = module.removeprefix("lakefork.")
            allowed = MAY_IMPORT[room] | {room}
            assert any(target == name or target.startswith(f"{name}.") for name in allowed), f"{room} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(LIBRARY)))
def test_only_orchestration_imports_airflow(path: Path) -> None:
    if _room(path) != "orchestration":
        assert not any(module.split(".")[0] == "airflow" for module in _imports(path))


@pytest.mark.parametrize("path", sorted((JOBS.parent / "dags").glob("*.py")), ids=lambda path: path.name)
def test_dags_import_only_what_is_cheap(path: Path) -> None:
    for module in _imports(path):
        assert module.startswith(("lakefork.orchestration", "lakefork.params", "airflow.sdk", "datetime")), module


@pytest.mark.parametrize("arguments", [["-c", "import lakefork.cli"], ["-c", "import lakefork.spark.submit"]])
def test_light_modules_import_nothing_heavy(arguments: list[str]) -> None:
    code = arguments[1] + f"; import sys; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_engine_loads_no_duckdb() -> None:
    """All of it runs in workers, which may die."""
    code = "import lakefork.sql.engine, sys; print('duckdb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_planners_do_no_io() -> None:
    forbidden = {"psycopg", "pyarrow", "pyspark", "os", "pathlib", "subprocess", "socket"}
    for path in (LIBRARY / "maintenance").glob("*.py"):
        assert not {module.split(".")[0] for module in _imports(path)} & forbidden, path.name


REMOVES = {
    "unlink", "rmtree", "remove", "rmdir", "removedirs", "delete_file", "delete_dir", "delete_dir_contents", "delete_objects",
    "remove_many", "move_to_trash",
}  # fmt: skip
WHO_REMOVES = {  # batches, and what else is removed
    "storage/removal.py": {"unlink", "rmdir", "delete_file", "delete_objects"},
    "spark/file_cleanup.py": {"remove_many", "move_to_trash"},
    "spark/staging.py": {"remove_many"},  # what a dead run left
    "spark/quarantine.py": {"remove_many"},  # what failed an older audit
    "storage/__init__.py": {"unlink", "delete_file"},  # temporary files and probes
    "storage/creation.py": {"unlink"},  # temporary files
    "cold/schema_files.py": {"remove_many"},  # schema files of a dropped table
    "catalog/dump.py": {"unlink"},
    "embedded/postgres.py": {"rmtree", "unlink"},
    "embedded/processes.py": {"unlink"},
}
FILES_AND_PATHS = {"os", "shutil", "filesystem", "requests", "target", "password_file", "_record", "path"}


def _removals(path: Path) -> set[str]:
    """Names of what removes files that a module calls; `remove` of lists and sets does not."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            of = getattr(node.func, "value", None)
            owner = getattr(of, "id", getattr(of, "attr", ""))
            if name in REMOVES and (name != "remove" or owner in FILES_AND_PATHS):
                found.add(name)
    return found


def test_nothing_but_cleanup_and_staging_removes_batches() -> None:
    """DROP of a table, a namespace or a catalog ends in the same path as retention."""
    found = {str(path.relative_to(LIBRARY)): _removals(path) for path in MODULES}
    assert {name: removals for name, removals in found.items() if removals} == WHO_REMOVES
