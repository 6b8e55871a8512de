"""Plans catalog_fsck, and compares files with their records."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakefork.cold.statistics import BatchFacts

FILES_PER_RANGE = 20_000


@dataclass(frozen=True)
class Finding:
    """One broken invariant; catalog is None for what concerns the whole database."""

    check: str
    catalog: str | None
    object: str
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.check}: {'catalog ' + self.catalog if self.catalog else 'database'}: {self.object}: {self.problem}"
        )


@dataclass(frozen=True)
class RecordedFile:
    """The catalog's record of a file; statistics: column id → (values, nulls, min, max)."""

    file_id: int
    kind: str
    path: str | None
    size_bytes: int
    footer_size: int | None
    record_count: int
    catalog: str
    catalogs: int
    statistics: Mapping[str, list[Any]] | None = None

    def finding(self, problem: str) -> Finding:
        others = f" (and {self.catalogs - 1} more catalog(s) refer to it)" if self.catalogs > 1 else ""
        return Finding("file", self.catalog, f"file {self.file_id} {self.path}", problem + others)


def plan_ranges(files: int, parallelism: int) -> int:
    """Splits the file ids into ranges, enough for all cores and for steady progress."""
    return max(parallelism, -(-files // FILES_PER_RANGE))


def check_size(recorded: RecordedFile, seen_size: int | None) -> Iterator[Finding]:
    if seen_size is None:
        yield recorded.finding("it does not exist")
    elif seen_size != recorded.size_bytes:
        yield recorded.finding(f"it has {seen_size} bytes, expected {recorded.size_bytes}")


def check_facts(recorded: RecordedFile, facts: BatchFacts) -> Iterator[Finding]:
    """Compares a footer with the record: rows, footer size, statistics of each column."""
    if facts.record_count != recorded.record_count:
        yield recorded.finding(f"it holds {facts.record_count} rows, expected {recorded.record_count}")
    if recorded.footer_size is not None and facts.footer_size != recorded.footer_size:
        yield recorded.finding(f"its footer has {facts.footer_size} bytes, expected {recorded.footer_size}")
    for column_id, (values, nulls, low, high) in (recorded.statistics or {}).items():
        seen = facts.columns.get(int(column_id))
        if seen is None:
            yield recorded.finding(f"it lacks column {column_id}, whose statistics are recorded")
        elif (
            seen.value_count != values
            or seen.null_count not in (nulls, None)
            or (low is not None and [seen.min_value, seen.max_value] != [low, high])
        ):  # the catalog omits some bounds on purpose (NaN)
            yield recorded.finding(
                f"statistics of column {column_id}: expected values={values} nulls={nulls} min={low} max={high}, "
                f"the footer says {seen._asdict()}"
            )


def by_catalog(findings: Iterable[Finding]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.catalog or "database"] = counts.get(finding.catalog or "database", 0) + 1
    return counts
