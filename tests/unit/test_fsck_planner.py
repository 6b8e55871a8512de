"""What fsck says of a file, without files."""

import pytest

from lakefork.cold.statistics import BatchFacts, ColumnStatistics
from lakefork.upkeep.fsck.plan import Finding, RecordedFile, by_catalog, check_facts, check_size, plan_ranges

RECORDED = RecordedFile(7, "data", "/lake/f", 100, 10, 5, "main", 1, {"1": [5, 0, "1", "9"]})
FACTS = BatchFacts.of(100, 10, 5, {1: ColumnStatistics(5, 0, "1", "9")})


def test_a_sound_file_gives_no_finding() -> None:
    assert [*check_size(RECORDED, 100), *check_facts(RECORDED, FACTS)] == []


@pytest.mark.parametrize(
    ("size", "problem"), [(None, "it does not exist"), (99, "it has 99 bytes, expected 100"), (0, "it has 0 bytes")]
)
def test_missing_and_cut_files_are_found(size: int | None, problem: str) -> None:
    (finding,) = check_size(RECORDED, size)
    assert finding.problem.startswith(problem)
    assert str(finding).startswith("file: catalog main: file 7 /lake/f: ")


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        (BatchFacts.of(100, 10, 4, FACTS.columns), "it holds 4 rows, expected 5"),
        (BatchFacts.of(100, 11, 5, FACTS.columns), "its footer has 11 bytes, expected 10"),
        (BatchFacts.of(100, 10, 5, {}), "it lacks column 1"),
        (BatchFacts.of(100, 10, 5, {1: ColumnStatistics(5, 1, "1", "9")}), "statistics of column 1"),
        (BatchFacts.of(100, 10, 5, {1: ColumnStatistics(5, 0, "0", "9")}), "statistics of column 1"),
        (BatchFacts.of(100, 10, 5, {1: ColumnStatistics(5, 0, "1", None)}), "statistics of column 1"),
    ],
)
def test_each_difference_of_the_footer_is_found(facts: BatchFacts, problem: str) -> None:
    (finding,) = check_facts(RECORDED, facts)
    assert finding.problem.startswith(problem)


def test_other_catalogs_that_need_the_file_are_counted() -> None:
    shared = RecordedFile(7, "data", "/lake/f", 100, 10, 5, "main", 1000)
    (finding,) = check_size(shared, None)
    assert finding.problem == "it does not exist (and 999 more catalog(s) refer to it)"


@pytest.mark.parametrize(("files", "cores", "ranges"), [(1, 2, 2), (40_000, 2, 2), (40_001, 2, 3), (10**6, 16, 50)])
def test_ranges_use_all_cores_and_stay_small(files: int, cores: int, ranges: int) -> None:
    assert plan_ranges(files, cores) == ranges


def test_findings_are_counted_per_catalog() -> None:
    findings = [Finding("file", "a", "x", "y"), Finding("file", "a", "x", "y"), Finding("snapshot", None, "x", "y")]
    assert by_catalog(findings) == {"a": 2, "database": 1}
