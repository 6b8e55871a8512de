"""Imports point down (docs/decisions.md), and light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from lakefork.queries import load

JOBS = Path(__file__).parents[2] / "jobs"
LIBRARY = JOBS / "lakefork"
BASE = {
    "settings",
    "errors",
    "database_errors",
    "pools",
    "watchdog",
    "queries",
    "progress",
    "garbage",
    "model",
    "resources",
    "__version__",
}
MAY_IMPORT = {  # a room, and the rooms that lie below it
    "resources": set(),
    "settings": {"errors", "model.durations", "resources"},
    "errors": set(),
    "database_errors": {"errors"},
    "pools": {"errors"},
    "watchdog": set(),
    "queries": set(),
    "progress": set(),
    "garbage": set(),
    "model": {"errors"},
    "storage": BASE,
    "catalog": BASE,
    "hot": BASE,
    "cold": BASE | {"storage", "catalog"},
    "manifests": BASE | {"storage", "catalog", "cold"},
    "read": BASE | {"storage", "catalog", "hot", "cold", "manifests"},
    "backups": BASE | {"storage", "catalog"},
    "sql": BASE | {"storage", "catalog", "hot", "cold", "manifests", "read", "backups"},
    "live": BASE | {"storage", "catalog", "hot", "cold", "manifests", "read", "sql"},
    "overview": BASE | {"catalog", "cold.statistics", "read"},
    "client": {"errors"},
    "server": BASE | {"storage", "catalog", "hot", "cold", "manifests", "read", "sql", "live", "overview"},
    "quality": BASE | {"storage", "catalog", "cold"},
    "spark": BASE | {"storage", "catalog", "hot", "cold", "manifests", "read"},
    "removal": BASE | {"storage", "catalog", "spark"},
    "upkeep": BASE | {"storage", "catalog", "hot", "cold", "manifests", "read", "quality", "spark", "removal"},
    "transfer": BASE
    | {"storage", "catalog", "hot", "cold", "manifests", "read", "backups", "sql", "quality", "spark", "removal"},
    "orchestration": BASE | {"catalog", "manifests.cache_table", "removal.plans", "spark.submit"},
    "embedded": BASE | {"storage", "catalog", "sql", "overview", "client", "server"},
    "cli": BASE
    | {
        "storage",
        "catalog",
        "hot",
        "cold",
        "manifests",
        "read",
        "backups",
        "sql",
        "overview",
        "spark",
        "removal",
        "upkeep",
        "transfer",
        "embedded",
        "server",
        "client",
    },
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
        assert module.startswith(("lakefork.orchestration", "lakefork.model.params", "airflow.sdk", "datetime")), module


@pytest.mark.parametrize("arguments", [["-c", "import lakefork.cli.main"], ["-c", "import lakefork.spark.submit"]])
def test_light_modules_import_nothing_heavy(arguments: list[str]) -> None:
    code = arguments[1] + f"; import sys; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_engine_loads_no_duckdb() -> None:
    """All of it runs in workers, which may die."""
    code = "import lakefork.sql.engine, sys; print('duckdb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(LIBRARY)))
def test_a_module_loads_only_the_queries_of_its_own_package(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load" and "load" in _loaded(path):
            assert [ast.unparse(argument) for argument in node.args] == ["__package__"]


def _loaded(path: Path) -> set[str]:
    """What a module imports from lakefork.queries."""
    nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom))
    return {alias.name for node in nodes if node.module == "lakefork.queries" for alias in node.names}


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("queries.sql")), ids=lambda path: str(path.relative_to(LIBRARY)))
def test_every_query_is_used_in_its_package(path: Path) -> None:
    package = ".".join(path.parent.relative_to(LIBRARY.parent).parts)
    code = "".join(module.read_text() for module in path.parent.glob("*.py"))
    assert [name for name in load(package) if f'"{name}"' not in code] == []


PLANNERS = sorted(
    path for path in MODULES if path.name in {"plan.py", "orphan_plan.py", "restore_plan.py"} or _room(path) == "model"
)


@pytest.mark.parametrize("path", PLANNERS, ids=lambda path: str(path.relative_to(LIBRARY)))
def test_planners_and_values_do_no_io(path: Path) -> None:
    forbidden = {"psycopg", "pyspark", "os", "pathlib", "subprocess", "socket"}
    if _room(path) != "model":  # whose types of columns are also Arrow's
        forbidden |= {"pyarrow"}
    assert not {module.split(".")[0] for module in _imports(path)} & forbidden


def test_each_job_of_upkeep_has_a_planner() -> None:
    jobs = {path.parent for path in (LIBRARY / "upkeep").glob("*/run.py")}
    assert {path.parent for path in PLANNERS} >= jobs - {LIBRARY / "upkeep" / "cleanup"}


REMOVES = {
    "unlink", "rmtree", "remove", "rmdir", "removedirs", "delete_file", "delete_dir", "delete_dir_contents", "delete_objects",
    "remove_many", "move_to_trash",
}  # fmt: skip
WHO_REMOVES = {  # batches, and what else is removed
    "storage/removal.py": {"unlink", "rmdir", "delete_file", "delete_objects"},
    "removal/files.py": {"remove_many", "move_to_trash"},
    "upkeep/cleanup/run.py": {"remove_many"},  # markers of what is forgotten
    "upkeep/staging.py": {"remove_many"},  # what a dead run left
    "upkeep/flush/quarantine.py": {"remove_many"},  # what failed an older audit
    "storage/__init__.py": {"unlink", "delete_file"},  # temporary files and probes
    "storage/creation.py": {"unlink"},  # temporary files
    "cold/schema_files.py": {"remove_many"},  # schema files of a dropped table
    "storage/copying.py": {"unlink", "delete_file"},  # temporary files, and objects that were not finished
    "transfer/backup/keep.py": {"remove_many"},  # old backups
    "transfer/backup/restore_staging.py": {"remove_many"},  # what a dead restore left
    "transfer/dump.py": {"unlink"},
    "transfer/postgres_copy/staged.py": {"remove_many"},  # what a copy staged and does not publish
    "embedded/postgres.py": {"rmtree", "unlink"},
    "embedded/processes.py": {"unlink"},
    "server/app.py": {"rmtree"},  # metrics of a server whose parent was killed
    "server/keys.py": {"unlink"},  # temporary files
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
