"""Plans manifest_rebuild: which task checks which directories; and compares a directory with the catalog."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.cold.statistics import BatchFacts
from lakefork.errors import one_line
from lakefork.upkeep.fsck.plan import RecordedFile, check_facts

WORK_PER_TASK = 1_000
WORK_PER_ROUND = 100_000  # tables are leased for a round, during which flush skips them

# Findings that a new manifest does not repair.
LASTING = ("missing file", "unreadable file", "wrong file")


@dataclass(frozen=True)
class Owner:
    """A directory of a table; user_id is '' for a shared one. files: how many the catalog has or had there."""

    user_id: str
    directory: str
    files: int

    @property
    def work(self) -> int:
        return 1 + self.files


@dataclass(frozen=True)
class TableDirectories:
    catalog_id: int
    table_id: int
    name: str
    per_user: bool
    owners: tuple[Owner, ...]

    @property
    def work(self) -> int:
        return sum(owner.work for owner in self.owners)


@dataclass(frozen=True)
class CheckTask:
    """Some directories of a table; or, of one large directory, the manifest or a part of the files."""

    table: TableDirectories  # with the owners of this task only
    part: int = 0
    parts: int = 1
    manifests: bool = True
    footers: bool = True


@dataclass(frozen=True)
class ManifestFinding:
    kind: str
    table: str
    path: str
    problem: str

    def __str__(self) -> str:
        return one_line(f"{self.kind}: {self.table}: {self.path}: {self.problem}")


def plan_rounds(tables: Sequence[TableDirectories], work: int = WORK_PER_ROUND) -> Iterator[list[TableDirectories]]:
    """Groups tables into rounds that are checked together."""
    found: list[TableDirectories] = []
    planned = 0
    for table in tables:
        if found and planned + table.work > work:
            yield found
            found, planned = [], 0
        found.append(table)
        planned += table.work
    if found:
        yield found


def plan_tasks(table: TableDirectories, work: int = WORK_PER_TASK) -> Iterator[CheckTask]:
    """Groups directories into tasks; a large one is split into parts."""
    together: list[Owner] = []
    planned = 0
    for owner in table.owners:
        parts = -(-owner.work // (2 * work))
        if parts > 1:
            large = _only(table, [owner])
            yield CheckTask(large, footers=False)
            yield from (CheckTask(large, part, parts, manifests=False) for part in range(parts))
            continue
        if together and planned + owner.work > work:
            yield CheckTask(_only(table, together))
            together, planned = [], 0
        together.append(owner)
        planned += owner.work
    if together:
        yield CheckTask(_only(table, together))


def _only(table: TableDirectories, owners: Sequence[Owner]) -> TableDirectories:
    return TableDirectories(table.catalog_id, table.table_id, table.name, table.per_user, tuple(owners))


def check_files(
    table: str, recorded: Sequence[Mapping[str, Any]], sizes: Mapping[str, int], footers: Mapping[str, BatchFacts | str]
) -> Iterator[ManifestFinding]:
    """Compares the catalog's batches with their directory and with the footers (or the error of reading them)."""
    for batch in recorded:
        path, name = batch["path"], batch["path"].rpartition("/")[2]
        if name not in sizes:
            yield ManifestFinding("missing file", table, path, "it is in the catalog but not in storage")
        elif sizes[name] != batch["size_bytes"]:
            problem = f"it has {sizes[name]} bytes, expected {batch['size_bytes']}"
            yield ManifestFinding("wrong file", table, path, problem)
        elif isinstance(footer := footers.get(name), str):
            yield ManifestFinding("unreadable file", table, path, footer)
        elif footer is not None:
            found = (one.problem for one in check_facts(_as_recorded(batch), footer))
            yield from (ManifestFinding("wrong file", table, path, problem) for problem in found)


def _as_recorded(batch: Mapping[str, Any]) -> RecordedFile:
    statistics = {str(column_id): known for column_id, _kind, *known in batch["columns"].values()}
    return RecordedFile(
        batch["data_file_id"], "data", batch["path"], batch["size_bytes"], None, batch["row_count"], "", 1, statistics
    )


def unknown_files(recorded: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> list[str]:
    """Returns batch files that the table does not have now; hidden files are temporary ones."""
    known = {batch["path"].rpartition("/")[2] for batch in recorded}
    return [name for name in sizes if name.endswith(".parquet") and not name.startswith(".") and name not in known]
