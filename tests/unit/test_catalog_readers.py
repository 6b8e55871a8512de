"""How a fork is stored is known in one place: everything else reads the catalog by lakefork.visible_* and retained_*."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakefork.model.tables import SYSTEM_COLUMN_IDS

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "jobs" / "lakefork"
TABLES = re.findall(r"CREATE TABLE public\.(ducklake_\w+)", (ROOT / "schema" / "postgresql.sql").read_text())
MAY_READ_TABLES = {  # and why
    "schema/functions/visible.sql": "makes what all others read",
    "schema/functions/entities.sql": "describes the columns of each table",
    "schema/functions/apply.sql": "writes: a commit's definitions",
    "schema/functions/files.sql": "writes: a commit's files",
    "schema/functions/commit.sql": "writes: checks what a commit relies on",
    "schema/functions/describe.sql": "writes: the words for a commit's own changes",
    "schema/functions/snapshots.sql": "writes: snapshots",
    "schema/functions/catalogs.sql": "writes: catalogs and their settings",
    "schema/functions/fork.sql": "writes: forks",
    "schema/functions/restore.sql": "writes: what a restore publishes",
    "schema/functions/retention.sql": "expires: what a plan takes",
    "schema/functions/expiry.sql": "expires: takes it",
    "schema/functions/cleanup.sql": "expires: files that no catalog has",
    "schema/functions/orphans.sql": "checks: who claims a file",
    "schema/functions/fsck.sql": "checks",
    "jobs/lakefork/catalog/schema.py": "writes: which Lakefork made the schema",
    "jobs/lakefork/transfer/dump.py": "writes tables of the same names into a DuckDB file",
    "jobs/lakefork/catalog/connection.py": "checks: the version, of whatever schema there is",
}
READS = re.compile(
    rf"\b(?:FROM|JOIN|INTO|UPDATE|USING|ONLY|TABLE|ANALYZE|VACUUM|COPY|,)\s+(?:ONLY\s+)?(?:public\.)?({'|'.join(TABLES)})\b"
    rf"|\bpublic\.({'|'.join(TABLES)}|%)",
    re.IGNORECASE,
)
SQL = sorted(
    [
        *LIBRARY.rglob("*.sql"),
        *(ROOT / "schema" / "views").glob("*.sql"),
        *(ROOT / "schema" / "functions").glob("*.sql"),
        ROOT / "schema" / "airflow.sql",
    ]
)
PYTHON = sorted([*(ROOT / "jobs").rglob("*.py"), *(ROOT / "plugins").rglob("*.py"), *(ROOT / "dags").glob("*.py")])


def _texts(path: Path) -> Iterator[str]:
    """A file's SQL without comments, names of rights and triggers; of Python what is in its strings."""
    if path.suffix == ".sql":
        yield re.sub(r"--.*|_privilege\([^)]*\)|AFTER DELETE ON \S+", "", path.read_text())
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _tables_read(path: Path) -> set[str]:
    return {one or other for text in _texts(path) for one, other in READS.findall(text)}


@pytest.mark.parametrize("path", SQL + PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_what_writes_expires_and_checks_reads_the_tables(path: Path) -> None:
    if str(path.relative_to(ROOT)) not in MAY_READ_TABLES:
        assert not _tables_read(path), "read lakefork.visible_* or lakefork.retained_* instead"


def test_what_may_read_the_tables_does() -> None:
    assert {name for name in MAY_READ_TABLES if not _tables_read(ROOT / name)} == set()


def test_a_new_read_is_noticed(tmp_path: Path) -> None:
    for name, text in {
        "a.sql": "SELECT 1 FROM ducklake_table",
        "b.sql": "EXECUTE format('SELECT * FROM public.ducklake_tag')",
        "c.py": "connection.execute('SELECT * FROM x JOIN public.ducklake_column c USING (y)')",
        "d.py": "query = f'UPDATE ducklake_table SET x = {y}'",
    }.items():
        (tmp_path / name).write_text(text)
        assert _tables_read(tmp_path / name), name


VISIBLE = (ROOT / "schema" / "functions" / "visible.sql").read_text()
SET_RETURNING = re.findall(
    r"CREATE FUNCTION lakefork\.(visible_\w+)\(.*?\)\s+RETURNS .*?\n(LANGUAGE .*?) AS \$", VISIBLE, re.DOTALL
)


@pytest.mark.parametrize(("name", "options"), SET_RETURNING, ids=lambda value: value.split()[0])
def test_postgres_can_inline_what_readers_use(name: str, options: str) -> None:
    assert options == "LANGUAGE sql STABLE"


def test_each_lock_has_a_number_of_its_own() -> None:
    """And the functions of locks.sql are the only ones that know it."""
    numbers = re.findall(r"\b\d{9,}\b", (ROOT / "schema/functions/locks.sql").read_text())
    assert len(numbers) == len(set(numbers)) > 3
    others = [path for path in SQL + PYTHON if path.name != "locks.sql"]
    assert not [path for path in others if any(number in path.read_text() for number in numbers)]
    hashed = re.compile(r"advisory_(?:xact_)?lock(?:_shared)?\(hash")
    assert not [path for path in others if hashed.search(path.read_text())]


def test_system_columns_have_the_same_ids_in_sql() -> None:
    text = (ROOT / "schema/functions/entities.sql").read_text()
    found = dict(re.findall(r"lakefork\.(\w+)_column_id\(\) .*SELECT (\d+)::bigint", text))
    assert {f"_{name}": int(number) for name, number in found.items()}.items() <= SYSTEM_COLUMN_IDS.items()
    assert not [path for path in SQL if re.search(r"column_id = \d\b", path.read_text())]
