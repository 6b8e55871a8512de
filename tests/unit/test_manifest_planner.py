"""The planner of manifest_rebuild, and its findings, without files."""

import pytest

from lakefork.cold.statistics import BatchFacts, ColumnStatistics
from lakefork.upkeep.manifest_rebuild.plan import (
    LASTING,
    ManifestFinding,
    Owner,
    TableDirectories,
    check_files,
    plan_rounds,
    plan_tasks,
    unknown_files,
)

BATCH = {
    "path": "/d/batch-0.parquet", "data_file_id": 1, "size_bytes": 100, "row_count": 5,
    "columns": {"id": [4, "int64", 5, 0, "1", "9"]},
}  # fmt: skip
FACTS = BatchFacts.of(100, 10, 5, {4: ColumnStatistics(5, 0, "1", "9")})


def table(*files: int) -> TableDirectories:
    return TableDirectories(1, 2, "t", True, tuple(Owner(f"u{n}", f"/u{n}", count) for n, count in enumerate(files)))


def test_small_directories_share_a_task_and_none_is_forgotten() -> None:
    tasks = list(plan_tasks(table(*[1] * 1000), work=100))
    assert len(tasks) == 20
    assert [owner for task in tasks for owner in task.table.owners] == list(table(*[1] * 1000).owners)
    assert all(task.manifests and task.footers and task.parts == 1 for task in tasks)


def test_a_large_directory_is_split_and_its_manifest_looked_at_once() -> None:
    tasks = list(plan_tasks(table(3, 1000, 3), work=100))
    large = [task for task in tasks if task.table.owners[0].user_id == "u1"]
    assert [task.part for task in large if task.footers] == list(range(6))
    assert sum(task.manifests for task in large) == 1
    assert [owner.user_id for task in tasks if task not in large for owner in task.table.owners] == ["u0", "u2"]


def test_a_table_is_in_one_round_only() -> None:
    tables = [table(10), table(500), table(10), table(10)]
    assert [len(one) for one in plan_rounds(tables, work=100)] == [1, 1, 2]
    assert list(plan_rounds([])) == []


@pytest.mark.parametrize(
    ("sizes", "footer", "kind"),
    [
        ({}, FACTS, "missing file"),
        ({"batch-0.parquet": 99}, FACTS, "wrong file"),
        ({"batch-0.parquet": 100}, "it is not readable Parquet", "unreadable file"),
        ({"batch-0.parquet": 100}, BatchFacts.of(100, 10, 4, FACTS.columns), "wrong file"),
        ({"batch-0.parquet": 100}, BatchFacts.of(100, 10, 5, {4: ColumnStatistics(5, 0, "0", "9")}), "wrong file"),
        ({"batch-0.parquet": 100}, BatchFacts.of(100, 10, 5, {}), "wrong file"),
    ],
)
def test_what_is_wrong_with_a_file_is_found_and_lasts(
    sizes: dict[str, int], footer: BatchFacts | str, kind: str
) -> None:
    (finding,) = check_files("main.app.t", [BATCH], sizes, {"batch-0.parquet": footer})
    assert (finding.kind, finding.kind in LASTING, finding.path) == (kind, True, BATCH["path"])


def test_a_sound_file_gives_no_finding() -> None:
    assert list(check_files("t", [BATCH], {"batch-0.parquet": 100}, {"batch-0.parquet": FACTS})) == []


def test_only_batches_that_the_catalog_lacks_are_unknown() -> None:
    sizes = dict.fromkeys(["batch-0.parquet", "batch-1.parquet", "manifest.json", ".batch-2.parquet", "notes.txt"], 1)
    assert unknown_files([BATCH], sizes) == ["batch-1.parquet"]


def test_a_finding_is_one_printable_line() -> None:
    assert str(ManifestFinding("extra file", "t", "/d/a\nb\ud800", "x")) == "extra file: t: /d/a b : x"
